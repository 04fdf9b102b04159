"""A rule as users define it and as the log topic `mqlake.rules` keeps it.

Field names are those of EMQX's `/api/v5/rules`, so that definitions can be carried over.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_SQL_CHARACTERS: Final = 16_384
MAX_NAME_CHARACTERS: Final = 200
MAX_DESCRIPTION_CHARACTERS: Final = 2_000
MAX_ACTIONS: Final = 16
MAX_VERSIONS: Final = 100
"""Versions kept of a rule; older ones are forgotten."""

RuleId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


class ActionSpec(BaseModel):
    """An action of a rule: a function and its arguments.

    The arguments are checked by the function's own model, see `rules.actions`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    function: str = Field(description="its name, one of those of GET /rule_actions")
    args: dict[str, Any] = Field(default_factory=dict, description="arguments of the function")
    fallback: tuple["ActionSpec", ...] = Field(
        default=(), max_length=4, description="run instead, in order, when this one has given up"
    )

    def tables(self) -> Iterator[str]:
        """Yield the names of tables that it writes, or that its fallbacks write."""
        for one in (self, *self.fallback):
            if one.function == "table" and isinstance(name := one.args.get("name"), str):
                yield name


class RuleBody(BaseModel):
    """The user's part of a rule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(default="", max_length=MAX_NAME_CHARACTERS, description="for people")
    description: str = Field(
        default="", max_length=MAX_DESCRIPTION_CHARACTERS, description="for people"
    )
    sql: str = Field(min_length=1, max_length=MAX_SQL_CHARACTERS, description="the statement")
    enable: bool = Field(default=True, description="whether it runs")
    actions: tuple[ActionSpec, ...] = Field(default=(), max_length=MAX_ACTIONS)


class Rule(RuleBody):
    """One version of a rule."""

    id: RuleId
    tenant: str = "default"
    version: int = Field(default=1, ge=1, description="counts up with each change")
    created_at: int = Field(description="of version 1, milliseconds UTC")
    updated_at: int = Field(description="of this version, milliseconds UTC")
    made_by: str | None = Field(
        default=None,
        description="the caller who made this version and whose rights apply; null: it is older "
        "than this field, and acts as an administrator",
    )


RuleState = Literal["starting", "running", "stopped", "failed", "paused"]
"""State of a rule as a whole: `starting` until the engine has answered for the newest version."""
