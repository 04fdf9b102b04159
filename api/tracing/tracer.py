"""Puts a trace together: the log first, which has the last days; then the tables."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from api.access.callers import Caller
from api.clients.cache import SessionCache
from api.rules.materialised import MaterialisedRules
from api.spark.connect import EvaluationError, SparkAway
from api.tracing.deliveries import Recorded, Standing, Traced, trace_subscriber
from api.tracing.rules import RuleFindings, trace_rules
from api.tracing.scan import Scan, ScanRange, Seen
from api.tracing.tables import MOST_CLIENTS, TraceTables
from api.tracing.timeline import Timeline
from api.tracing.views import AcceptedView, Recording, Routed, RuleTrace, SubscriberTrace, Trace
from mqlake.errors import InvalidRecord, LogError
from mqlake.identifiers import identifier_ms
from mqlake.records.messages import (
    DEAD_LETTERS,
    EVENTS,
    HEADER_ID,
    HEADER_SOURCE,
    INBOUND,
    OUTPUTS,
    RUNNER,
    decode_message,
    decode_source,
    delivery_topic,
)
from mqlake.records.rules import events_read
from mqlake.tables.catalogue import RULE_TABLE_PREFIX
from rules.runner.checkpoint import CHECKPOINT_KEY, decode_checkpoint

_MESSAGE_MS: Final = 2_000
_DELIVERY_MS: Final = 10_000
_OUTPUTS_MS: Final = 60_000
_PUBLISHED_MS: Final = 30_000
_CHECKPOINT_RECORDS: Final = 200
MOST_TAIL: Final = 100_000
"""Events behind those that the table has."""
MOST_SUBSCRIPTIONS: Final = 50_000
_PAGE: Final = 1_000


@dataclass(slots=True)
class MessageTracer:
    """Traces one message.

    Attributes:
        scan: Reads the log.
        tables: Ask Spark.
        cache: Knows the sessions that outlive their connections.
        view: Knows the rules.
        gateways: Names of the live ones.
        tenant: Owner of the message.
        caller: Caller of the request; None: one who has all topics.
        not_known: Parts that could not be found out, in words.
    """

    scan: Scan
    tables: TraceTables
    cache: SessionCache
    view: MaterialisedRules
    gateways: list[str]
    tenant: str
    caller: Caller | None = None
    not_known: list[str] = field(default_factory=list)

    def trace(self, message_id: str, client_id: str | None, limit: int) -> Trace | None:
        """Return the trace of a message; None when there is none that the caller may have.

        Args:
            message_id: 32 hexadecimal digits.
            client_id: Only its delivery to this client; None: to all that may have got it.
            limit: Subscribers, at most.

        Raises:
            LogError: The log does not answer.
            SparkAway: Neither has the log the message, nor does Spark answer.
        """
        accepted = self._find(message_id, identifier_ms(bytes.fromhex(message_id)))
        caller = self.caller
        if accepted is None or not (caller is None or caller.may_have(accepted.topic_name)):
            return None
        traced = Traced(
            message_id=message_id,
            topic_name=accepted.topic_name,
            qos=accepted.qos,
            publisher=accepted.client_id,
            at_ms=round(accepted.at.timestamp() * 1000),
            partition=accepted.partition,
            offset=accepted.offset,
        )
        subscribers = self._subscribers(traced, client_id, limit)
        rules = None
        if caller is None or caller.topic_filters is None:
            rules = self._rules(traced)
        else:
            self.not_known.append("rules are not shown to who is for some topics alone")
        return Trace(
            message_id=message_id,
            tenant=self.tenant,
            summary=_summary(subscribers, rules, client_id),
            accepted=accepted,
            routed=self._routed(traced),
            subscribers=subscribers,
            rules=rules or [],
            recording=self._recording(),
            not_known=self.not_known,
        )

    # The message

    def _find(self, message_id: str, at_ms: int) -> AcceptedView | None:
        wanted = bytes.fromhex(message_id)
        found: list[Seen] = []

        def take(record: Seen) -> bool:
            if record.headers.get(HEADER_ID) == wanted:
                found.append(record)
            return bool(found)

        self.scan.read(ScanRange(INBOUND, from_ms=at_ms, until_ms=at_ms + _MESSAGE_MS), take)
        if not found:
            return self._find_row(message_id, at_ms)
        (record,) = found
        try:
            headers = [*record.headers.items()]
            message = decode_message(record.key, record.value, headers, record.timestamp_ms)
        except InvalidRecord:
            return None
        if message.tenant != self.tenant:
            return None
        return AcceptedView(
            topic_name=message.topic_name,
            at=_time(record.timestamp_ms),
            origin=message.origin,
            client_id=message.client_id,
            username=message.username,
            qos=message.qos,
            retain=message.retain,
            payload_bytes=len(message.payload),
            partition=record.partition,
            offset=record.offset,
            found_in="log",
        )

    def _find_row(self, message_id: str, at_ms: int) -> AcceptedView | None:
        row = self.tables.message(message_id, at_ms)
        if row is None:
            return None
        return AcceptedView(
            topic_name=row["topic"],
            at=_time(row["at_ms"]),
            origin=row["origin"] or "",
            client_id=row["client_id"] or "",
            username=row["username"],
            qos=row["qos"],
            retain=row["retain"],
            payload_bytes=row["payload_bytes"] or 0,
            partition=row["log_partition"],
            offset=row["log_offset"],
            found_in="table",
        )

    # Subscribers

    def _subscribers(
        self, traced: Traced, client_id: str | None, limit: int
    ) -> list[SubscriberTrace]:
        timeline = Timeline(traced.topic_name, traced.at_ms, client_id)
        recorded = Recorded()
        self._read_events(timeline, recorded, traced, client_id)
        self._add_stored(timeline, traced, client_id)
        found: list[SubscriberTrace] = []
        standings: dict[str, Standing | None] = {}
        for one, life in timeline.clients():
            for held in life.held.values():
                if not timeline.matches(held.topic_filter):
                    continue
                if one not in standings:
                    standings[one] = self._standing(one)
                at_client = trace_subscriber(traced, one, life, held, standings[one], recorded)
                if at_client is not None:
                    found.append(at_client)
        if client_id is not None and client_id not in timeline.lives:
            self.not_known.append(f"no event mentions client {client_id!r}")
        if len({one.client_id for one in found}) >= MOST_CLIENTS or len(found) > limit:
            self.not_known.append(
                f"there are more subscribers than the {min(limit, len(found))} shown: ask with "
                "client_id"
            )
        found.sort(key=lambda one: (_ORDER.index(one.outcome), one.client_id))
        return found[:limit]

    def _read_events(
        self, timeline: Timeline, recorded: Recorded, traced: Traced, client_id: str | None
    ) -> None:
        """Read the table's rows, then the log's records beyond them."""
        starts: dict[int, int] | None = None
        try:
            last, events = self.tables.events(
                traced.topic_name, traced.at_ms, client_id, traced.message_id
            )
            for offset, event in events:
                timeline.take(offset, event)
                recorded.take(event, traced)
            for row in self.tables.drops(traced.topic_name, traced.at_ms):
                recorded.drops.setdefault(row["client_id"], []).append(row)
            starts = {0: last + 1}
        except (SparkAway, EvaluationError) as exc:
            self.not_known.append(
                f"the tables were not asked ({exc}): of events only the newest in the log are known"
            )
            starts = {0: -MOST_TAIL}

        def take(record: Seen) -> bool:
            try:
                event = json.loads(record.value)
            except ValueError:
                return False
            if isinstance(event, dict) and event.get("tenant") == self.tenant:
                timeline.take(record.offset, event)
                recorded.take(event, traced)
            return False

        if not self.scan.read(ScanRange(EVENTS, (0,), starts=starts, most=MOST_TAIL), take):
            self.not_known.append(f"the table events is more than {MOST_TAIL:,} events behind")

    def _add_stored(self, timeline: Timeline, traced: Traced, client_id: str | None) -> None:
        """Add subscriptions of sessions that no event tells of (any more)."""
        if not self.cache.is_complete:
            return
        after, left = ("", ""), MOST_SUBSCRIPTIONS
        while left > 0:
            page = self.cache.subscriptions(self.tenant, None, after, _PAGE)
            for one in page:
                wanted = client_id in (None, one.client_id)
                if not wanted or not timeline.matches(one.topic_filter):
                    continue
                life = timeline.lives.get(one.client_id)
                standing = self._standing(one.client_id)
                if standing is not None and (life is None or one.topic_filter not in life.held):
                    timeline.lives[one.client_id] = standing.life(life, one.topic_filter, traced)
            if len(page) < _PAGE:
                return
            after = (page[-1].topic_filter, page[-1].client_id)
            left -= len(page)
        self.not_known.append(f"only {MOST_SUBSCRIPTIONS:,} stored subscriptions were looked at")

    def _standing(self, client_id: str) -> Standing | None:
        stored = self.cache.client(self.tenant, client_id) if self.cache.is_complete else None
        try:
            return None if stored is None else Standing.read(stored)
        except InvalidRecord:
            return None

    def _routed(self, traced: Traced) -> list[Routed]:
        """Return the gateways in whose delivery topic it still stands."""
        found = []
        for name in self.gateways:
            places: list[int] = []

            def take(record: Seen, places: list[int] = places) -> bool:
                try:
                    source = decode_source(record.headers.get(HEADER_SOURCE, b""))
                except InvalidRecord:
                    return False
                if (source.partition, source.offset) == (traced.partition, traced.offset):
                    places.append(record.offset)
                return bool(places)

            until = traced.at_ms + _DELIVERY_MS
            try:
                # Its records have the times of the messages, or of their routing.
                self.scan.read(
                    ScanRange(delivery_topic(name), (0,), from_ms=traced.at_ms, until_ms=until),
                    take,
                )
            except LogError:
                continue  # it has none (any more)
            if places:
                found.append(Routed(gateway=name, basis="recorded", offset=places[0]))
        return found

    # Rules

    def _rules(self, traced: Traced) -> list[RuleTrace]:
        findings = RuleFindings(traced, self.tenant)
        begin = traced.at_ms
        place = self._outputs_place(traced)
        self.scan.read(
            ScanRange(OUTPUTS, (place,), from_ms=begin, until_ms=begin + _OUTPUTS_MS),
            findings.take_output,
        )
        try:
            for row in self.tables.letters(INBOUND, traced.partition, traced.offset):
                findings.take_letter_row(row)
        except (SparkAway, EvaluationError):
            letters = ScanRange(DEAD_LETTERS, (0,), from_ms=begin, most=20_000)
            if not self.scan.read(letters, findings.take_letter):
                self.not_known.append("there are more dead letters since than were read")
        if findings.outputs:
            self._outcomes(findings)
        else:
            self.not_known += self._outputs_gone(traced)
        entries = self.view.all(self.tenant) if self.view.is_complete else []
        return trace_rules(findings, entries)

    def _outcomes(self, findings: RuleFindings) -> None:
        """Look for the outcomes of outputs."""
        begin = findings.traced.at_ms
        self.scan.read(
            ScanRange(INBOUND, from_ms=begin, until_ms=begin + _PUBLISHED_MS, most=20_000),
            findings.take_published,
        )

        def take(record: Seen) -> bool:
            if record.key == CHECKPOINT_KEY:
                findings.checkpoint = decode_checkpoint(record.value)
            return False

        with contextlib.suppress(LogError, InvalidRecord):  # there was no runner yet
            self.scan.read(ScanRange(RUNNER, (0,), starts={0: -_CHECKPOINT_RECORDS}), take)
        position = f"/i:{findings.traced.partition}:{findings.traced.offset}:"
        for rule, table in self._tables_of(findings):
            try:
                findings.table_rows.update(self.tables.table_rows(table, position))
                findings.tables_read.add(rule)
            except (SparkAway, EvaluationError) as exc:
                self.not_known.append(f"table {table} was not read: {exc}")

    def _tables_of(self, findings: RuleFindings) -> Iterator[tuple[str, str]]:
        for rule in sorted({one.output.rule for one in findings.outputs}):
            entry = self.view.get(self.tenant, rule)
            for action in () if entry is None else entry.rule.actions:
                name: Any = action.args.get("name")
                if action.function == "table" and isinstance(name, str):
                    yield rule, RULE_TABLE_PREFIX + name

    def _outputs_place(self, traced: Traced) -> int:
        """Return the partition of `mqlake.outputs` that has the rules' outputs for it."""
        return traced.partition % self.scan.partition_count(OUTPUTS)

    def _outputs_gone(self, traced: Traced) -> list[str]:
        place = self._outputs_place(traced)
        if self.scan.first_offset(OUTPUTS, place) == 0:
            return []  # nothing has ever been removed
        oldest: list[int] = []

        def take(record: Seen) -> bool:
            oldest.append(record.timestamp_ms)
            return True

        self.scan.read(ScanRange(OUTPUTS, (place,), starts={}), take)
        if oldest and oldest[0] <= traced.at_ms:
            return []
        return ["outputs of rules from then are no longer in the log, if there were any"]

    def _recording(self) -> Recording:
        read: set[str] = set()
        for entry in self.view.all(self.tenant) if self.view.is_complete else []:
            if entry.activation is not None:
                read |= events_read(entry.activation)
        return Recording(delivered="message_delivered" in read, acked="message_acked" in read)


_ORDER: Final = [
    "acked",
    "delivered",
    "handed_over",
    "in_flight",
    "waiting",
    "dropped",
    "unknown",
]


def _summary(
    subscribers: list[SubscriberTrace], rules: list[RuleTrace] | None, client_id: str | None
) -> str:
    """Say the most important in a sentence."""
    counts: dict[str, int] = {}
    for one in subscribers:
        counts[one.outcome] = counts.get(one.outcome, 0) + 1
    whose = "no subscription" if client_id is None else f"no subscription of {client_id!r}"
    who = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
    found = f"subscribers: {who}" if who else f"{whose} matched it when it was accepted"
    if rules is None:
        return f"accepted; {found}"
    rows = sum(len(one.outputs) for one in rules)
    letters = sum(len(one.dead_letters) for one in rules)
    return f"accepted; {found}; rules: {len(rules)}, {rows} rows, {letters} dead letters"


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, tz=UTC)
