r"""Outputs of rules and dead letters, from and to records; `docs/records.md` is this in prose."""

import hashlib
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from mqlake.errors import InvalidRecord
from mqlake.records.messages import (
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
from mqlake.records.versions import Headers

RUN_PREFIX: Final = "w"
"""Sources that begin so are runs of stateful rules."""

MAX_CHAIN: Final = 16
"""Rules a message may have come through; beyond, it is taken for a loop."""

UNNAMED_RULE: Final = "*"
"""Stands in a chain for a rule that is not known by name: an output of a stateful rule is of many
messages, and only through how many rules they have come is remembered."""

SOURCE_INBOUND: Final = "i"

SOURCE_EVENTS: Final = "e"

RERUN: Final = "r"
"""Source of outputs of dead letters that are run again. That job looks first for outputs that are
there already: these come once, in any order, and readers keep no mark of them."""

Stage = Literal["evaluate", "late", "action", "rerun"]


@dataclass(slots=True, frozen=True)
class Position:
    """Source of an output; with rule and version it identifies the output.

    As text, header `output`: `<source>:<partition>:<offset>:<index>`.
    """

    source: str
    """`SOURCE_INBOUND`, `SOURCE_EVENTS`, `b` and a job's identifier for a backfill,
    `run_name` for a stateful rule; records that such a rule fails on come from `i.` or `e.` and its
    run. Each is an order of its own in every partition. `r` for outputs that were run again, see
    `RERUN`."""
    partition: int
    """Partition of the source record; with a stateful rule that of the output itself."""
    offset: int
    """Offset of the source record; with a stateful rule the number of its query's batch."""
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
    """Span that accepted the message; empty when it is not sampled."""

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
    """Time of the message; in stage `late` only."""
    watermark_ms: int | None = None
    """Everything up to this time was taken for complete; in stage `late` only."""


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
