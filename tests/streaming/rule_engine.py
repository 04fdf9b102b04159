"""The Java rule evaluation, asked from Python."""

import functools
import json
from typing import Any, NamedTuple

from mqlake.records.messages import (
    DEAD_LETTERS,
    EVENTS,
    HEADER_PEERHOST,
    INBOUND,
    OUTPUTS,
    Message,
    message_headers,
    message_key,
)
from mqlake.records.outputs import DeadLetter, Output, decode_dead_letter, decode_output
from mqlake.records.rules import Activation, OffsetRange, Span, encode_activation
from mqlake.records.versions import Headers
from rules.language.compiler import compile_rule


class Event(NamedTuple):
    """An event that the engine writes."""

    key: bytes
    value: bytes
    chain: bytes


OUTPUT_PARTITIONS = 4


class Limits:
    """How large records may be; Java asks."""

    def __init__(self) -> None:
        self.most = {OUTPUTS: 64 * 1024**2, DEAD_LETTERS: 64 * 1024**2}

    def mostBytes(self, log_topic: str, _bytes: int) -> int:  # noqa: N802 - as Java calls it
        return self.most[log_topic]

    class Java:
        implements = ("mqlake.log.RecordLimits",)


class Engine:
    """A rule table, what is put into it and what it makes of records while the clock stands."""

    def __init__(self, jvm: Any, gateway: Any) -> None:
        self.limits = Limits()
        self.jvm = jvm
        # Looked up once: each name of a Java package is a call.
        self._counters = jvm.mqlake.rules.RuleCounters
        self._new_strings = functools.partial(gateway.new_array, jvm.java.lang.String)
        bytes_class = jvm.java.lang.Class.forName("[B")
        self._new_arrays = functools.partial(jvm.java.lang.reflect.Array.newInstance, bytes_class)
        self.table = jvm.mqlake.rules.RuleTable()
        self.events: list[Event] = []
        clock = jvm.java.time.Clock.fixed(jvm.java.time.Instant.now(), jvm.java.time.ZoneOffset.UTC)
        self._evaluation = jvm.mqlake.rules.RuleEvaluation(
            EVENTS, OUTPUTS, OUTPUT_PARTITIONS, DEAD_LETTERS, self.limits, clock
        )

    def activate(self, *spans: Span, rule: str = "r", tenant: str = "default") -> None:
        activation = Activation(tenant, rule, "running", 1, 1, spans=spans)
        self.table.apply(f"a/{tenant}/{rule}", encode_activation(activation))

    def publish(
        self,
        topic: str,
        payload: bytes = b"{}",
        *,
        partition: int = 0,
        offset: int = 0,
        chain: bytes = b"",
        peer_host: str = "",
        **fields: Any,
    ) -> list[Output | DeadLetter]:
        values: dict[str, Any] = {
            "qos": 1,
            "retain": False,
            "message_id": bytes(15) + b"\x7f",
            "client_id": "c",
            "received_at_ms": 5,
            "origin": "site/gateway",
        }
        message = Message("default", topic, payload, **(values | fields))
        headers = message_headers(message)
        if chain:
            headers.append(("chain", chain))
        if peer_host:
            headers.append((HEADER_PEERHOST, peer_host.encode()))
        key = message_key("default", topic)
        return self.evaluate(INBOUND, partition, offset, key, payload, headers)

    def counters(self, rule: str) -> dict[str, int]:
        """Return what a rule counts."""
        counters: dict[str, int] = json.loads(self._counters.of(f"default/{rule}").toJson())
        return counters

    def evaluate(
        self,
        log_topic: str,
        partition: int,
        offset: int,
        key: bytes,
        value: bytes | None,
        headers: Headers,
    ) -> list[Output | DeadLetter]:
        names, values = self._new_strings(len(headers)), self._new_arrays(len(headers))
        for number, (name, header) in enumerate(headers):
            names[number] = name
            values[number] = header
        made = self._evaluation.evaluate(
            self.table, log_topic, partition, offset, 5, key, value, names, values
        )
        for row in made:
            if row.get(0) == EVENTS:
                (chain,) = (bytes(header.get(1)) for header in row.get(4))
                self.events.append(Event(bytes(row.get(2)), bytes(row.get(3)), chain))
        return [self._decode(row) for row in made if row.get(0) != EVENTS]

    @staticmethod
    def _decode(row: Any) -> Output | DeadLetter:
        key, value = bytes(row.get(2)), bytes(row.get(3))
        headers = [(header.get(0), bytes(header.get(1))) for header in row.get(4)]
        if row.get(0) == OUTPUTS:
            return decode_output(key, value, headers)
        assert (row.get(0), row.get(1)) == (DEAD_LETTERS, 0)
        return decode_dead_letter(key, value, headers)


def a_span(
    sql: str,
    version: int = 1,
    begin: tuple[int, ...] = (0, 0),
    end: tuple[int, ...] | None = None,
) -> Span:
    rule = compile_rule(sql)
    source = EVENTS if rule.is_events else INBOUND
    sources = {source: OffsetRange(begin, end)}
    return Span(version, rule.filters, rule.expression, (), None, sources)


def rows(made: list[Output | DeadLetter]) -> list[Any]:
    return [json.loads(one.row) for one in made if isinstance(one, Output)]


def outcomes(made: list[Output | DeadLetter]) -> list[tuple[str, Any]]:
    """Return of each what its rule counts it as, and what it says."""
    return [
        ("passed", one.row) if isinstance(one, Output) else ("failed", one.error) for one in made
    ]
