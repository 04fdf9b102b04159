"""FROM: which messages or events a rule takes, and the columns they have."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from mqlake.errors import InvalidTopic
from mqlake.records.rules import EVENTS_PREFIX
from mqlake.topics.names import SHARE_PREFIX, validate_topic_filter
from rules.columns import EVENTS, MESSAGE, RuleColumn
from rules.errors import RuleError
from rules.language.expressions import Expressions
from rules.language.functions.decoding import decoded
from rules.language.limits import Limits
from rules.language.scope import Scope
from rules.schemas.errors import UnknownSchema


@dataclass(frozen=True, slots=True)
class RuleSource:
    """A source that FROM or JOIN names.

    Attributes:
        filters: Topic filters, or `$events/<name>` in the spelling with `_`.
        is_events: Whether the filters name events.
        columns: Columns of its messages or events.
    """

    filters: tuple[str, ...]
    is_events: bool
    columns: tuple[RuleColumn, ...]


def read_source(sql: str, listed: Sequence[exp.Expr], limits: Limits) -> RuleSource:
    """Check the filters that stand behind FROM or JOIN.

    Raises:
        RuleError: One is no topic filter and no event, or there are too many.
    """
    if len(listed) > limits.filters:
        raise RuleError.at_node(sql, listed[-1], f"more than {limits.filters} topic filters")
    events = [one for one in listed if one.this.startswith(EVENTS_PREFIX)]
    if not events:
        filters = dict.fromkeys(_topic_filter(sql, one) for one in listed)
        return RuleSource(tuple(filters), is_events=False, columns=MESSAGE)
    if len(events) < len(listed):
        raise RuleError.at_node(
            sql, events[0], "events and topics cannot be in one rule", "make two rules"
        )
    found = dict.fromkeys(_event(sql, one) for one in events)
    named = tuple(EVENTS_PREFIX + name for name in found)
    return RuleSource(named, is_events=True, columns=_event_columns(found))


def decode_payload(
    expressions: Expressions, scope: Scope, source: RuleSource, node: exp.Expr | None
) -> None:
    """Let `payload` stand for the value that DECODE gives, if there is one.

    Raises:
        RuleError: There is no such schema, or no payload.
    """
    if node is None:
        return
    if source.is_events:
        expressions.fail(node, "events have no payload to decode")
    payload = scope.column("payload", ())
    try:
        value = decoded(expressions, node.this, payload, node.args.get("message_type"))
    except UnknownSchema as exc:
        expressions.fail(node, str(exc), hint=exc.hint)
    scope.give_payload(value)


def _topic_filter(sql: str, node: exp.Expr) -> str:
    topic_filter: str = node.this
    if topic_filter.startswith(SHARE_PREFIX):
        raise RuleError.at_node(
            sql, node, "a rule has no shared subscriptions", "leave out $share/<name>/"
        )
    try:
        validate_topic_filter(topic_filter)
    except InvalidTopic as exc:
        raise RuleError.at_node(sql, node, f"not a topic filter: {exc}") from exc
    return topic_filter


def _event(sql: str, node: exp.Expr) -> str:
    name: str = node.this.removeprefix(EVENTS_PREFIX).replace("/", "_").replace(".", "_")
    if name not in EVENTS:
        raise RuleError.at_node(sql, node, "unknown event", f"there are: {', '.join(EVENTS)}")
    return name


def _event_columns(events: Iterable[str]) -> tuple[RuleColumn, ...]:
    """Return the columns of several events; of a name that some make differently, the first."""
    columns: dict[str, RuleColumn] = {}
    for event in events:
        for column in EVENTS[event]:
            known = columns.setdefault(column.name, column)
            if column.expression not in known.expression:
                both = f"coalesce({known.expression}, {column.expression})"
                columns[column.name] = replace(known, expression=both)
    return tuple(columns.values())
