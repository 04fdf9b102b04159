"""Rules of callers with rights to some topics alone: they have those that stay within these."""

from collections.abc import Mapping

from api.access.callers import Caller
from api.rules.checking import compiled
from mqlake.errors import MqlakeError
from mqlake.records.references import Columns
from rules.errors import RuleError
from rules.language.compiled import CompiledRule
from rules.makers import why_not
from rules.model import RuleBody
from rules.schemas.registry import Schemas


class NotWithin(MqlakeError):  # noqa: N818 - it names the obstacle
    """A rule is about more than the topics of its maker."""


def check_within(caller: Caller, tenant: str, made: CompiledRule, body: RuleBody) -> None:
    """Accept a rule that its caller may make.

    Raises:
        NotWithin: It reads, joins or acts beyond his rights.
    """
    why = _why_not(caller, tenant, made, body)
    if why is not None:
        raise NotWithin(f"{caller.name} {why}")


def is_within(caller: Caller, tenant: str, body: RuleBody, schemas: Schemas) -> bool:
    """Tell whether a rule is one that a caller is shown: for all topics, or one within his."""
    if caller.topic_filters is None:
        return True
    try:
        made = compiled(body.sql, schemas)
    except RuleError:
        return False
    # A caller who may not make rules any more is still shown his own.
    maker = Caller(caller.name, "editor", caller.kind, topic_filters=caller.topic_filters)
    return _why_not(maker, tenant, made, body) is None


def tables_for(caller: Caller, references: Mapping[str, Columns]) -> Mapping[str, Columns]:
    """Return the reference tables that there are for a caller: none with some topics alone."""
    return references if caller.topic_filters is None else {}


def _why_not(caller: Caller, tenant: str, made: CompiledRule, body: RuleBody) -> str | None:
    joined = [] if made.plan is None else [one.table for one in made.plan.references]
    return why_not(caller, tenant, made.filters, joined, body.actions)
