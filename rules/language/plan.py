"""Plan of a stateful rule: streams of typed columns, and one query over them.

A plan says nothing of where rows come from. The same plan runs over the log as a streaming query
and over the table `messages` as a batch: the runner gives each name below its relation.

1. For each `StatefulStream` the rows of `rules.columns.ROW` that match its filters, then its
   `condition`, then its `columns` and `EVENT_TIME`: a relation of the stream's name, with a
   watermark of `lateness_ms` on `EVENT_TIME` where it is a stream of Spark's, which no row moves
   beyond its arrival. An expression that throws on a row is that message's failure: the row is left
   out. Columns are asked only of rows for which the condition is true.
2. For each `JoinedReference` the table's rows: a relation of the reference's name.
3. The `Detection`, if there is one, makes of its stream's relation the relation `DETECTED`.
4. `query` over these yields ROW_COLUMN, AT_COLUMN and HOPS, in output mode *append*.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

EVENT_TIME: Final = "event_time"
"""Column of each stream's relation: TIMESTAMP, never NULL."""

DETECTED: Final = "detected"
"""The relation that a detection yields."""

ROW_COLUMN: Final = "row"
"""STRING: an output as JSON object. NULL is one that could not be made, of a division by zero, say;
it belongs to no single message."""

AT_COLUMN: Final = "at"
"""TIMESTAMP: the end of the window, the later of two joined messages' times, or when the detection
tells it."""

HOPS: Final = "hops"
"""Column of each stream's relation and of the query: BIGINT, how many rules a message has come
through; of an output the most of any message it is made of. So rules that feed each other are found
out. Only a live stream knows it, others have 0 there."""

STATE: Final = "state"
"""Column of `DETECTED`: STRING, the key's present state in the detection's words."""

SINCE: Final = "since"
"""Column of `DETECTED`: TIMESTAMP, since when."""

DetectionKind = Literal["absence", "debounce", "hysteresis", "n_of_m"]


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column of a stream's relation.

    Attributes:
        name: Made by the compiler, `c0`, `c1`, …; a plain word.
        type: STRING, BINARY, BIGINT, INT, DOUBLE or BOOLEAN.
        expression: Spark SQL over `rules.columns.ROW` of that type; it may throw.
    """

    name: str
    type: str
    expression: str


@dataclass(frozen=True, slots=True)
class StatefulStream:
    """The rows of one source that a rule remembers something of.

    Attributes:
        name: Name of its relation, a plain word: `s0`, `s1`.
        filters: Topic filters, or `$events/<name>`.
        is_events: Whether the filters name events.
        condition: Spark SQL over the row, BOOLEAN without NULL; it may throw. `true` without WHERE.
        columns: Columns that the query and the detection use.
        event_time: Spark SQL over the row, TIMESTAMP; it throws where a message has none, or one
            too far ahead of its arrival.
        is_receive_time: Whether that is when the gateway accepted the message.
        lateness_ms: How much later than the latest a message may come and still count.
        size_ms: How long a window is, or the gap of a session; 0 without windows.
        slide_ms: How far one window is from the next; 0 for a session and without windows.
    """

    name: str
    filters: tuple[str, ...]
    is_events: bool
    condition: str
    columns: tuple[TypedColumn, ...]
    event_time: str
    is_receive_time: bool
    lateness_ms: int
    size_ms: int = 0
    slide_ms: int = 0


@dataclass(frozen=True, slots=True)
class JoinedReference:
    """A reference table that a rule joins.

    Attributes:
        name: Name of its relation: `r0`, `r1`.
        table: The reference's identifier, as users know it.
        columns: Those that the rule reads; without them in the table the query cannot be analysed.
    """

    name: str
    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Detection:
    """A detection in the messages of each key.

    The relation `DETECTED` has the columns of the stream (of the message that the detection tells
    of: the last one), AT_COLUMN, STATE and SINCE.

    Attributes:
        kind: Which detection.
        stream: Name of the stream.
        keys: Columns that tell one sequence of messages from another; may be NULL.
        order: INT and BIGINT columns that settle the order of messages with the same time.
        condition: BOOLEAN column; of debounce and n_of_m.
        value: DOUBLE column, NULL where a message has no number; of hysteresis.
        duration_ms: Duration for absence and debounce.
        high: For hysteresis: at or above it the state is high.
        low: For hysteresis: at or below it the state is low.
        least: For n_of_m: number of the `last` messages.
        last: For n_of_m: number of messages that are looked at.
    """

    kind: DetectionKind
    stream: str
    keys: tuple[str, ...]
    order: tuple[str, ...] = ()
    condition: str | None = None
    value: str | None = None
    duration_ms: int = 0
    high: float = 0.0
    low: float = 0.0
    least: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A stateful rule.

    Attributes:
        streams: One, or two that are joined.
        references: Joined tables.
        detection: At most one.
        query: Spark SQL over the relations.
    """

    streams: tuple[StatefulStream, ...]
    references: tuple[JoinedReference, ...]
    detection: Detection | None
    query: str


def encode_plan(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON has it."""
    return asdict(plan)


def decode_plan(fields: Mapping[str, Any]) -> Plan:
    """Return the plan that `encode_plan` wrote, before or after JSON."""
    detection = fields["detection"]
    if detection is not None:
        listed = {name: tuple(detection[name]) for name in ("keys", "order")}
        detection = Detection(**{**detection, **listed})
    return Plan(
        streams=tuple(_stream(one) for one in fields["streams"]),
        references=tuple(
            JoinedReference(**{**one, "columns": tuple(one["columns"])})
            for one in fields["references"]
        ),
        detection=detection,
        query=fields["query"],
    )


def _stream(fields: Mapping[str, Any]) -> StatefulStream:
    columns = tuple(TypedColumn(**one) for one in fields["columns"])
    return StatefulStream(**{**fields, "filters": tuple(fields["filters"]), "columns": columns})
