r"""The records of rules: definitions, activations, outputs, dead letters and metrics.

`docs/records.md` is this module in prose; names of log topics and headers are in `mqlake.records`.

Which version of a rule applies to a record follows from the record's position alone: an activation
says from which offset of each partition on a version counts, and up to which. So an evaluation that
comes again gives the same outputs, with the same identifiers.
"""

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, cast, get_args

from mqlake.errors import InvalidRecord
from mqlake.record_versions import RECORD_VERSION, Headers, check_version
from mqlake.records import (
    HEADER_ACTION,
    HEADER_CHAIN,
    HEADER_CLIENT_ID,
    HEADER_ERROR,
    HEADER_EVENT_TIME,
    HEADER_ID,
    HEADER_OUTPUT,
    HEADER_RULE,
    HEADER_STAGE,
    HEADER_TABLE,
    HEADER_TOPIC,
    HEADER_TRACEPARENT,
    HEADER_TS,
    HEADER_WATERMARK,
)

RULES_BARRIER_PREFIX: Final = b"\0rules/"
"""Followed by the number of the change; in every partition of the rules' sources."""

DECIDED_KEY: Final = b"c"
"""In `mqlake.rules`, value `{"v":1,"change":n}`: results of changes up to n stand before it."""

HEADER_MAC: Final = "mac"
"""Of an activation: HMAC-SHA-256 of the length of its key (4 bytes), key and value, by a key that
router and lake have."""

RUN_PREFIX: Final = "w"
"""Sources that begin so are runs of stateful rules."""

MAX_CHAIN: Final = 16
"""Rules a message may have come through; beyond, it is taken for a loop."""

UNNAMED_RULE: Final = "*"
"""Stands in a chain for a rule that is not known by name: an output of a stateful rule is of many
messages, and only through how many rules they have come is remembered."""

EVENTS_PREFIX: Final = "$events/"
"""Of the topics that stand for events: `$events/client_connected` for `client.connected`."""

RULE_FAILED: Final = "rule.failed"

MAX_FAILURES_TOLD: Final = 10
"""Events `rule.failed` of one rule a second, in each process; the next one says how many it is."""
SOURCE_INBOUND: Final = "i"
SOURCE_EVENTS: Final = "e"
RERUN: Final = "r"
"""Source of outputs of dead letters that are run again. That job looks first for outputs that are
there already: these come once, in any order, and readers keep no mark of them."""

KeyKind = Literal["definition", "version", "activation"]
ActivationState = Literal["running", "stopped", "failed", "paused"]
Stage = Literal["evaluate", "late", "action", "rerun"]


class Kind(StrEnum):
    """Of a record of `mqlake.rules`: how its key begins, before a slash; see `rule_facts`."""

    DEFINITION = "d"
    VERSION = "v"
    ACTIVATION = "a"
    UNSIGNED = ""
    """No key: an activation that is not signed as ours are."""
    RERUN = "x"
    SCHEMA = "s"
    REQUEST = "r"
    STATE = "t"
    DECIDED = "c"


@dataclass(slots=True, frozen=True)
class RulesKey:
    """A key of `mqlake.rules`; neither a tenant nor the identifier of a rule holds a slash."""

    kind: KeyKind
    tenant: str
    rule: str
    version: int | None = None
    """Of the kind `version` only."""


def rules_key(key: RulesKey) -> bytes:
    text = f"{Kind[key.kind.upper()]}/{key.tenant}/{key.rule}"
    return (text if key.version is None else f"{text}/{key.version}").encode()


def rerun_key(tenant: str, rule: str) -> bytes:
    """Return the key in `mqlake.rules` of where the last run of a rule's dead letters began."""
    return f"{Kind.RERUN}/{tenant}/{rule}".encode()


def rules_barrier_key(change: int) -> bytes:
    return RULES_BARRIER_PREFIX + str(change).encode("ascii")


@dataclass(slots=True, frozen=True)
class OffsetRange:
    """Offsets of one log topic for which a version counts, by partition."""

    starts: tuple[int, ...]
    """First offset that counts."""
    ends: tuple[int, ...] | None = None
    """First offset that no longer does; None while the version is in force."""


@dataclass(slots=True, frozen=True)
class Span:
    """One version of a rule, compiled, and where it counts."""

    version: int
    filters: tuple[str, ...]
    expression: str | None
    """Spark SQL over the columns of `rules.columns`, an array<string> of JSON objects or null; None
    for a rule that has a plan."""
    actions: tuple[dict[str, Any], ...]
    """As in the definition."""
    schema: str | None
    """Of the output row, as DDL; only where an action needs it."""
    sources: dict[str, OffsetRange]
    """By log topic."""
    first: dict[str, tuple[int, ...]] | None = None
    """By log topic, from where on this version of the rule has counted, when it was compiled again
    because a schema has changed; None: since `sources` begin."""
    plan: dict[str, Any] | None = None
    """Of a stateful rule: `rules.language.plan` as JSON has it."""
    change: int = 0
    """Number of the change that put it in force; with the rule it names its run."""
    ended_at_ms: int | None = None
    """When it was put out of force, UTC; of stateful rules."""
    missed: dict[str, tuple[int, ...]] | None = None
    """By log topic, where the rule had stopped (paused, say) before it began to count again: from
    there to `sources` nobody has evaluated it. None: nothing lies between."""

    @property
    def is_ended(self) -> bool:
        """Whether it is no longer in force."""
        return all(range_.ends is not None for range_ in self.sources.values())

    @property
    def is_empty(self) -> bool:
        """Whether there is no record that it counts for, and none will come."""
        return all(range_.ends == range_.starts for range_ in self.sources.values())


@dataclass(slots=True, frozen=True)
class Activation:
    """State that the engine has given to a rule's definition."""

    tenant: str
    rule: str
    state: ActivationState
    version: int
    """The newest version that the engine has looked at."""
    change: int
    error: str | None = None
    spans: tuple[Span, ...] = ()
    """In order of their offsets; those that no replay needs any more are left out."""
    updated_at: int = 0
    """Of that version; another one in a rule deleted and made again, even for the same number."""
    schemas: dict[str, int] = field(default_factory=dict)
    """Of those that the rule names without a version, the version it was compiled with; 0 for one
    that was not there."""

    @property
    def current(self) -> Span | None:
        """The version in force, None when the rule does not run."""
        last = self.spans[-1] if self.spans else None
        return None if last is None or last.is_ended else last


def events_read(activation: Activation) -> frozenset[str]:
    """Return the events that the version in force reads, `message_delivered` say."""
    current = activation.current
    return frozenset(
        one.removeprefix(EVENTS_PREFIX)
        for one in (() if current is None else current.filters)
        if one.startswith(EVENTS_PREFIX)
    )


def encode_activation(activation: Activation) -> bytes:
    """Return the value of an activation; its key is `rules_key`."""
    spans = [
        {
            "version": span.version,
            "filters": span.filters,
            "expression": span.expression,
            "plan": span.plan,
            "change": span.change,
            "ended_at": span.ended_at_ms,
            "actions": span.actions,
            "schema": span.schema,
            "sources": {
                log_topic: {"from": range_.starts, "to": range_.ends}
                for log_topic, range_ in span.sources.items()
            },
            "first": span.first,
            "missed": span.missed,
        }
        for span in activation.spans
    ]
    return _encode(
        {
            "v": RECORD_VERSION,
            "rule": activation.rule,
            "tenant": activation.tenant,
            "state": activation.state,
            "version": activation.version,
            "error": activation.error,
            "change": activation.change,
            "updated_at": activation.updated_at,
            "schemas": activation.schemas,
            "spans": spans,
        }
    )


def decode_activation(data: bytes) -> Activation:
    """Undo `encode_activation`.

    Raises:
        InvalidRecord: Not an activation of our version.
    """
    try:
        fields = _decode(data)
        return Activation(
            tenant=fields["tenant"],
            rule=fields["rule"],
            state=fields["state"],
            version=fields["version"],
            change=fields["change"],
            error=fields["error"],
            updated_at=fields.get("updated_at", 0),
            schemas=dict(fields.get("schemas", {})),
            spans=tuple(map(_decode_span, fields["spans"])),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise InvalidRecord(f"activation is malformed: {exc!r}") from exc


def _decode_span(fields: dict[str, Any]) -> Span:
    return Span(
        version=fields["version"],
        filters=tuple(fields["filters"]),
        expression=fields["expression"],
        actions=tuple(fields["actions"]),
        schema=fields["schema"],
        sources={
            log_topic: OffsetRange(
                tuple(range_["from"]), None if range_["to"] is None else tuple(range_["to"])
            )
            for log_topic, range_ in fields["sources"].items()
        },
        first=_decode_offsets(fields.get("first")),
        plan=fields.get("plan"),
        change=fields.get("change", 0),
        ended_at_ms=fields.get("ended_at"),
        missed=_decode_offsets(fields.get("missed")),
    )


def _decode_offsets(found: dict[str, list[int]] | None) -> dict[str, tuple[int, ...]] | None:
    return None if found is None else {name: tuple(offsets) for name, offsets in found.items()}


def encode_decided(change: int) -> bytes:
    """Return the value of the record with `DECIDED_KEY`."""
    return _encode({"v": RECORD_VERSION, "change": change})


def decode_decided(data: bytes) -> int:
    """Undo `encode_decided`.

    Raises:
        InvalidRecord: It is something else.
    """
    try:
        return int(_decode(data)["change"])
    except (KeyError, TypeError, ValueError) as exc:
        raise InvalidRecord(f"number of a change is malformed: {exc!r}") from exc


@dataclass(slots=True, frozen=True)
class Position:
    """Where an output comes from; with rule and version it tells an output from all others.

    As text, header `output`: `<source>:<partition>:<offset>:<index>`.
    """

    source: str
    """`SOURCE_INBOUND`, `SOURCE_EVENTS`, `b` and a job's identifier for a backfill,
    `run_name` for a stateful rule; records that such a rule fails on come from `i.` or `e.` and its
    run. Each is an order of its own in every partition. `r` for outputs that were run again, see
    `RERUN`."""
    partition: int
    """Of the source record; of a stateful rule that of the output itself."""
    offset: int
    """Of the source record; of a stateful rule the number of its query's batch."""
    index: int
    """Counts the outputs of one rule for one source record or batch."""

    def __str__(self) -> str:
        return f"{self.source}:{self.partition}:{self.offset}:{self.index}"

    def order(self, partition: int) -> str:
        """Name the order that it is of, among those of a partition of `mqlake.outputs`.

        Outputs of a partition that was added to `mqlake.inbound` are beside those of an older one.
        """
        return self.source if partition == self.partition else f"{self.source}:{self.partition}"


def run_name(tenant: str, rule: str, change: int) -> str:
    """Name one version of a stateful rule, from the change that put it in force."""
    digest = hashlib.sha256(rule_record_key(tenant, rule)).hexdigest()
    return f"{RUN_PREFIX}{change}-{digest[:12]}"


def decode_position(data: bytes) -> Position:
    """Read a header `output` of `mqlake.outputs` or `mqlake.dead_letters`.

    Raises:
        InvalidRecord: Not of that form.
    """
    try:
        source, partition, offset, index = data.decode("ascii").split(":")
        return Position(source, int(partition), int(offset), int(index))
    except ValueError as exc:
        raise InvalidRecord(f"header {HEADER_OUTPUT!r} is {data!r}, expected s:p:o:i") from exc


@dataclass(slots=True)
class Output:
    """A row that a rule has made: a record of `mqlake.outputs`."""

    tenant: str
    rule: str
    version: int
    row: bytes
    """A JSON object."""
    position: Position
    received_at_ms: int
    """Timestamp of the source record."""
    topic_name: str
    client_id: str
    message_id: bytes | None = None
    """None for the output of an event."""
    chain: tuple[str, ...] = ()
    """Rules that the message has come through before this one."""
    traceparent: bytes = b""
    """Of the span that accepted the message; empty when it is not sampled."""

    @property
    def mark(self) -> tuple[int, str, int]:
        """Mark that grows within a source and partition; an output not above the last came before.

        Rules are evaluated in the order of their identifiers, so a rule that gives another number
        of rows when it is evaluated again does not hide those of the next.
        """
        return self.position.offset, self.rule, self.position.index


def rule_record_key(tenant: str, rule: str) -> bytes:
    """Return the key of outputs and dead letters."""
    return f"{tenant}/{rule}".encode()


def output_headers(output: Output) -> Headers:
    """Return the headers of an output, as the engine writes them."""
    headers: Headers = [
        (HEADER_RULE, str(output.version).encode("ascii")),
        (HEADER_OUTPUT, str(output.position).encode("ascii")),
        (HEADER_TS, str(output.received_at_ms).encode("ascii")),
        (HEADER_TOPIC, output.topic_name.encode()),
        (HEADER_CLIENT_ID, output.client_id.encode()),
    ]
    if output.message_id is not None:
        headers.append((HEADER_ID, output.message_id))
    if output.chain:
        headers.append((HEADER_CHAIN, encode_chain(output.chain)))
    if output.traceparent:
        headers.append((HEADER_TRACEPARENT, output.traceparent))
    return headers


def decode_output(key: bytes, value: bytes | None, headers: Headers) -> Output:
    """Read a record of `mqlake.outputs`.

    Raises:
        InvalidRecord: A header is missing or malformed.
    """
    found = dict(headers)
    try:
        tenant, rule = key.decode().split("/")
        return Output(
            tenant=tenant,
            rule=rule,
            version=int(found[HEADER_RULE]),
            row=value or b"",
            position=decode_position(found[HEADER_OUTPUT]),
            received_at_ms=int(found[HEADER_TS]),
            topic_name=found[HEADER_TOPIC].decode(),
            client_id=found[HEADER_CLIENT_ID].decode(),
            message_id=found.get(HEADER_ID),
            chain=decode_chain(found.get(HEADER_CHAIN, b"")),
            traceparent=found.get(HEADER_TRACEPARENT, b""),
        )
    except KeyError as exc:
        raise InvalidRecord(f"header {exc} is missing") from exc
    except ValueError as exc:
        raise InvalidRecord(f"output is malformed: {exc}") from exc


def encode_chain(chain: tuple[str, ...]) -> bytes:
    """Return the header `chain`; no identifier of a rule holds a comma."""
    return ",".join(chain).encode("ascii")


def decode_chain(data: bytes) -> tuple[str, ...]:
    """Undo `encode_chain`; no header, no rules."""
    return tuple(data.decode(errors="replace").split(",")) if data else ()


@dataclass(slots=True)
class DeadLetter:
    """Message or output that a rule or an action failed on: a record of `mqlake.dead_letters`."""

    tenant: str
    rule: str
    version: int
    value: bytes
    """Stages `evaluate` and `late`: the payload; `action`: the output row; `rerun`: nothing."""
    position: Position
    stage: Stage
    error: str
    topic_name: str
    client_id: str
    action: str | None = None
    """`<index>/<function>` of the stage `action`."""
    event_time_ms: int | None = None
    """Of the stage `late`: the message's time."""
    watermark_ms: int | None = None
    """Of the stage `late`: everything up to this time was taken for complete."""


def dead_letter_headers(letter: DeadLetter) -> Headers:
    """Return the headers of a dead letter; its key is `rule_record_key`."""
    headers: Headers = [
        (HEADER_RULE, str(letter.version).encode("ascii")),
        (HEADER_OUTPUT, str(letter.position).encode("ascii")),
        (HEADER_STAGE, letter.stage.encode("ascii")),
        (HEADER_ERROR, letter.error.encode()),
        (HEADER_TOPIC, letter.topic_name.encode()),
        (HEADER_CLIENT_ID, letter.client_id.encode()),
    ]
    if letter.action is not None:
        headers.append((HEADER_ACTION, letter.action.encode()))
    if letter.event_time_ms is not None:
        headers.append((HEADER_EVENT_TIME, str(letter.event_time_ms).encode("ascii")))
    if letter.watermark_ms is not None:
        headers.append((HEADER_WATERMARK, str(letter.watermark_ms).encode("ascii")))
    return headers


STAGE_FALLBACK: Final = b"fallback"
"""Header `stage` of an output that goes to a table instead; it is no dead letter."""


def table_row_headers(output: Output, action: int, table: str) -> Headers:
    """Return the headers of an output that an action gave up and a table gets.

    A record of `mqlake.dead_letters`; its key is `rule_record_key`, its value the row.
    """
    return [
        *output_headers(output),
        (HEADER_STAGE, STAGE_FALLBACK),
        (HEADER_ACTION, f"{action}/table".encode("ascii")),
        (HEADER_TABLE, table.encode("ascii")),
    ]


def decode_dead_letter(key: bytes, value: bytes | None, headers: Headers) -> DeadLetter:
    """Read a record of `mqlake.dead_letters`.

    Raises:
        InvalidRecord: A header is missing or malformed.
    """
    found = dict(headers)
    try:
        tenant, rule = key.decode().split("/")
        stage = found[HEADER_STAGE].decode()
        if stage not in get_args(Stage):
            raise InvalidRecord(f"header {HEADER_STAGE!r} is {stage!r}")
        action = found.get(HEADER_ACTION)
        event_time, watermark = found.get(HEADER_EVENT_TIME), found.get(HEADER_WATERMARK)
        return DeadLetter(
            tenant=tenant,
            rule=rule,
            version=int(found[HEADER_RULE]),
            value=value or b"",
            position=decode_position(found[HEADER_OUTPUT]),
            stage=cast("Stage", stage),
            error=found[HEADER_ERROR].decode(),
            topic_name=found[HEADER_TOPIC].decode(),
            client_id=found[HEADER_CLIENT_ID].decode(),
            action=None if action is None else action.decode(),
            event_time_ms=None if event_time is None else int(event_time),
            watermark_ms=None if watermark is None else int(watermark),
        )
    except KeyError as exc:
        raise InvalidRecord(f"header {exc} is missing") from exc
    except ValueError as exc:
        raise InvalidRecord(f"dead letter is malformed: {exc}") from exc


ENGINE: Final = "engine"
"""Process of the counters of evaluation."""


@dataclass(slots=True, frozen=True)
class RuleMetricsKey:
    """A key of `mqlake.metrics`: counters of one rule in one run of a process."""

    process: str
    incarnation: str
    """Tells apart the runs of a process; counters begin at zero in each."""
    tenant: str
    rule: str


def rule_metrics_key(key: RuleMetricsKey) -> bytes:
    return f"{key.process}/{key.incarnation}/rules/{key.tenant}/{key.rule}".encode()


def decode_rule_metrics_key(data: bytes) -> RuleMetricsKey | None:
    """Read a key of `mqlake.metrics`; None for metrics of another kind."""
    parts = data.decode(errors="replace").split("/")
    if len(parts) != 5 or parts[2] != "rules":
        return None
    return RuleMetricsKey(parts[0], parts[1], parts[3], parts[4])


def _encode(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _decode(data: bytes) -> dict[str, Any]:
    fields = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    check_version(fields.get("v"), "record of rules")
    return fields
