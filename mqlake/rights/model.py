"""Content of a file of rights (`docs/rights.md`): roles, and rules of which the first decides."""

from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from mqlake.records.tenants import TenantName
from mqlake.rights.patterns import ClientIdPattern, TopicPattern
from mqlake.security.saslprep import UnpreparableText, prepare

Action: TypeAlias = Literal["connect", "publish", "subscribe", "receive"]

TOPIC_ACTIONS: Final[frozenset[Action]] = frozenset({"publish", "subscribe", "receive"})
MAX_RULES: Final = 100_000

Qos: TypeAlias = Literal[0, 1, 2]


def _prepared(name: str) -> str:
    try:
        return prepare(name, "user name")
    except UnpreparableText as exc:
        raise ValueError(str(exc)) from exc


UserName = Annotated[str, Field(min_length=1), AfterValidator(_prepared)]
"""In the form in which a login compares it."""
RoleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class RightsRule(BaseModel):
    """A rule: clients (all conditions must hold), actions, topics and effect."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    effect: Literal["allow", "deny"]
    actions: tuple[Action, ...] = Field(min_length=1)
    topics: tuple[Annotated[str, AfterValidator(lambda text: str(TopicPattern(text)))], ...] = ()
    """Topic filters; `%c` and `%u` stand for the client identifier and the user name, `%{name}`
    for an attribute."""

    tenants: tuple[TenantName, ...] | None = Field(default=None, min_length=1)
    users: tuple[UserName, ...] | None = Field(default=None, min_length=1)
    roles: tuple[RoleName, ...] | None = Field(default=None, min_length=1)
    client_ids: (
        tuple[Annotated[str, AfterValidator(lambda text: str(ClientIdPattern(text)))], ...] | None
    ) = Field(default=None, min_length=1)
    """Identifiers, or beginnings of them with a `*` behind; `%u` stands for the user name,
    `%{name}` for an attribute."""
    authenticated: bool | None = None
    """Only clients that have logged in as a user; false: only those that have not."""

    qos: tuple[Qos, ...] | None = Field(default=None, min_length=1)
    """QoS of a published message, or the one asked for by SUBSCRIBE."""
    retain: bool | None = None
    """RETAIN of a published message."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        actions = set(self.actions)
        if actions & TOPIC_ACTIONS and not self.topics:
            raise ValueError("topics is missing: name topic filters, # for all")
        if "connect" in actions and (actions != {"connect"} or self.topics):
            raise ValueError("connect has no topics and stands alone: give it a rule of its own")
        if self.qos is not None and not actions <= {"publish", "subscribe"}:
            raise ValueError(
                "qos is for publish and subscribe alone: give them a rule of their own"
            )
        if self.retain is not None and actions != {"publish"}:
            raise ValueError("retain is for publish alone: give it a rule of its own")
        return self


class RightsFile(BaseModel):
    """The content of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    roles: dict[RoleName, tuple[UserName, ...]] = {}
    """Role -> its users."""
    rules: tuple[RightsRule, ...] = Field(max_length=MAX_RULES)

    @model_validator(mode="after")
    def _roles_are_there(self) -> Self:
        for number, rule in enumerate(self.rules, 1):
            for role in rule.roles or ():
                if role not in self.roles:
                    raise ValueError(f"rule {number} is for the role {role!r}, which [roles] lacks")
        return self
