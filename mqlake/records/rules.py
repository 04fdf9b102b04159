r"""The records of rules: definitions, activations and metrics.

Outputs and dead letters are in `mqlake.records.outputs`.

`docs/records.md` is this module in prose; names of log topics and headers are in
`mqlake.records.messages`.

Which version of a rule applies to a record follows from the record's position alone: an activation
says from which offset of each partition on a version counts, and up to which. So an evaluation that
comes again gives the same outputs, with the same identifiers.
"""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal

from mqlake.errors import InvalidRecord
from mqlake.records.members import integer, load
from mqlake.records.versions import RECORD_VERSION

RULES_BARRIER_PREFIX: Final = b"\0rules/"
"""Followed by the number of the change; in every partition of the rules' sources."""

DECIDED_KEY: Final = b"c"
"""In `mqlake.rules`, value `{"v":1,"change":n}`: results of changes up to n stand before it."""

HEADER_MAC: Final = "mac"
"""Header of an activation: HMAC-SHA-256 of the length of its key (4 bytes), key and value, by a key
that router and lake have."""

EVENTS_PREFIX: Final = "$events/"
"""Begins the topics that stand for events: `$events/client_connected` for `client.connected`."""

RULE_FAILED: Final = "rule.failed"
RULE_UNREAD: Final = "rule.unread"

MAX_FAILURES_TOLD: Final = 10
"""Events `rule.failed` of one rule a second, in each process; the next one says how many it is."""

KeyKind = Literal["definition", "version", "activation"]

ActivationState = Literal["running", "stopped", "failed", "paused"]


class Kind(StrEnum):
    """Kinds of records of `mqlake.rules`, as their keys begin before a slash; see `rule_facts`."""

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
    """Set for the kind `version` only."""


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
    """Schema of the output row, as DDL; only where an action needs it."""
    sources: dict[str, OffsetRange]
    """By log topic."""
    first: dict[str, tuple[int, ...]] | None = None
    """By log topic, from where on this version of the rule has counted, when it was compiled again
    because a schema has changed; None: since `sources` begin."""
    plan: dict[str, Any] | None = None
    """Plan of a stateful rule: `rules.language.plan` as JSON has it."""
    change: int = 0
    """Number of the change that put it in force; with the rule it names its run."""
    ended_at_ms: int | None = None
    """When it was put out of force, UTC; of stateful rules."""
    missed: dict[str, tuple[int, ...]] | None = None
    """By log topic, where the rule had stopped (paused, say) before it began to count again: from
    there to `sources` it was not evaluated. None: nothing lies between."""

    @property
    def is_ended(self) -> bool:
        """Tell whether it is no longer in force."""
        return all(range_.ends is not None for range_ in self.sources.values())

    @property
    def is_empty(self) -> bool:
        """Tell whether there is no record that it counts for, and none will come."""
        return all(range_.ends == range_.starts for range_ in self.sources.values())


@dataclass(slots=True, frozen=True)
class LeftUnread:
    """Records that a stateful version has not taken, since its query was given up."""

    version: int
    change: int
    """Change of its span."""
    at_ms: int
    """When it was given up, UTC."""
    reason: str
    offsets: dict[str, dict[int, tuple[int, int]]]
    """By log topic and partition: from, up to and without. Empty when all is taken, and only
    windows that had ended have given nothing."""

    @property
    def count(self) -> int:
        """How many offsets these are."""
        return sum(end - first for one in self.offsets.values() for first, end in one.values())


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
    """When that version was made; it differs in a rule deleted and made again."""
    schemas: dict[str, int] = field(default_factory=dict)
    """Versions used of schemas that the rule names without a version; 0 for one
    that was not there."""
    unread: LeftUnread | None = None
    """Unread records of the last version that was given up."""

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
            "unread": unread_fields(activation.unread),
            "spans": spans,
        }
    )


def decode_activation(data: bytes) -> Activation:
    """Undo `encode_activation`.

    Raises:
        InvalidRecord: Not an activation of our version.
    """
    fields = load(data, "activation")
    try:
        return Activation(
            tenant=fields["tenant"],
            rule=fields["rule"],
            state=fields["state"],
            version=fields["version"],
            change=fields["change"],
            error=fields["error"],
            updated_at=fields.get("updated_at", 0),
            schemas=dict(fields.get("schemas", {})),
            unread=read_unread(fields.get("unread")),
            spans=tuple(map(_decode_span, fields["spans"])),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise InvalidRecord(f"activation is malformed: {exc!r}") from exc


def unread_fields(unread: LeftUnread | None) -> dict[str, Any] | None:
    """Return it as JSON has it."""
    return None if unread is None else asdict(unread)


def read_unread(fields: dict[str, Any] | None) -> LeftUnread | None:
    """Undo `unread_fields`, before or after JSON.

    Raises:
        KeyError, TypeError, AttributeError, ValueError: It is something else.
    """
    if fields is None:
        return None
    offsets = {
        log_topic: {int(partition): (first, end) for partition, (first, end) in found.items()}
        for log_topic, found in fields["offsets"].items()
    }
    return LeftUnread(**{**fields, "offsets": offsets})


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
    return integer(load(data, "number of a change"), "change")


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
