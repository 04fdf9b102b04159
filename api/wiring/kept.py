"""Resources that the REST API changes and the log keeps: their declaration, and their parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from api.log.materialised import MaterialisedView
from api.settings import ApiSettings
from api.wiring.edges import Edges

View = TypeVar("View", bound=MaterialisedView)
Changes = TypeVar("Changes")

Step = Literal["definitions", "access", "last"]
"""Step of a tenant's deletion: what acts for the tenant goes first, and the last keys last."""

OF_ALL_TENANTS: Final[Mapping[Step, Callable[[object, str], Mapping[str, int]]]] = {}
"""Nothing goes when a tenant does."""


@dataclass(frozen=True, slots=True)
class KeptPart(Generic[View, Changes]):
    """The parts of a resource."""

    view: View
    changes: Changes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resource(Generic[View, Changes]):
    """Declaration of a resource; if one is missing, the start ends.

    Attributes:
        log_topic: Keeps it.
        view: Makes the view that follows the log topic; a resource: it has the view of that one.
        changes: Makes what writes it.
        states: Path below the prefix -> its state there for the audit log, from the view,
            parameters of the path and tenant; secrets are left out. None: nothing is there.
        forget_tenant: What a step of a tenant's deletion does; may be done again. Returns what the
            job tells, by name. `OF_ALL_TENANTS`: nothing of it is a tenant's.
    """

    log_topic: str
    view: "Callable[[], View] | Resource[View, Any]"
    changes: Callable[[ApiSettings, Edges, View], Changes]
    states: Mapping[str, Callable[[View, Mapping[str, str], str], Any]]
    forget_tenant: Mapping[Step, Callable[[KeptPart[View, Changes], str], Mapping[str, int]]]


class Kept:
    """The parts of all resources.

    Args:
        resources: Resources to make parts for.
        settings: Settings of the process.
        edges: Connections of all parts.
    """

    def __init__(
        self, resources: Sequence[Resource[Any, Any]], settings: ApiSettings, edges: Edges
    ) -> None:
        self._parts: dict[Resource[Any, Any], KeptPart[Any, Any]] = {}
        for one in resources:
            view = self[one.view].view if isinstance(one.view, Resource) else one.view()
            self._parts[one] = KeptPart(view, one.changes(settings, edges, view))

    def __getitem__(self, resource: Resource[View, Changes]) -> KeptPart[View, Changes]:
        return self._parts[resource]

    def followed(self) -> dict[str, tuple[MaterialisedView, ...]]:
        """Return the views by the log topic that they follow."""
        found: dict[str, tuple[MaterialisedView, ...]] = {}
        for resource, part in self._parts.items():
            if not isinstance(resource.view, Resource):
                found[resource.log_topic] = (*found.get(resource.log_topic, ()), part.view)
        return found
