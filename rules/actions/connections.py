"""Connections that actions use, by names in the settings of the process.

The module of an action brings its `ConnectionKind`. The settings have one for each kind, and the
process opens a client when a rule first names the connection.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Generic, Literal, Protocol, TypeVar

from pydantic import Field

from mqlake.clock import Clock
from mqlake.records.tenants import DEFAULT_TENANT, TenantName
from mqlake.settings import SettingsGroup

Client = TypeVar("Client")


class ForTenants(SettingsGroup):
    """Something that rules name; one whose name begins with a tenant is that tenant's alone."""

    tenants: tuple[TenantName | Literal["*"], ...] = Field(
        default=(DEFAULT_TENANT,),
        min_length=1,
        description='Tenants whose rules may use it; "*" stands for all. Has no effect on a name '
        '"<tenant>/<name>": only rules of that tenant may use it, as <name>.',
    )


class Closing(Protocol):
    async def close(self) -> None: ...


@dataclass(frozen=True)
class ConnectionKind(Generic[Client]):
    """A kind of connection, and the contract of its client.

    Attributes:
        settings: Its settings; the only value of `kind` in them is its name.
        opener: `module:function` of `rules.runner` that returns a client for a name, the settings
            and a clock; by name, as readers of rules have no client libraries.
        example: Name of a connection, for the file with the settings.
    """

    settings: type[ForTenants]
    opener: str
    example: str

    @property
    def name(self) -> str:
        name: str = self.settings.model_fields["kind"].default
        return name

    def load(self) -> Callable[[str, Any, Clock], Any]:
        """Import the opener.

        Raises:
            ImportError: There is no such module.
            AttributeError: It has no such function.
        """
        opener: Callable[[str, Any, Clock], Any] = resolve_name(self.opener)
        return opener
