"""Figures beside the verdicts: rates, delays, shares, outage, time to the first delivery."""

import math
import random
from dataclasses import dataclass
from typing import Any, Final

from resilience.history import Operation
from resilience.world import KnownMessage, World

SAMPLES: Final = 4_000
"""Delays kept of a history, chosen at random; percentiles come from these."""


@dataclass(slots=True)
class _Fault:
    name: str
    part: str
    time: int
    end: int | None = None
    silence: int | None = None
    """The longest time without any delivery, begun before the fault was over."""


@dataclass(slots=True)
class _Work:
    """The gaps of one client: from one sign of service to the next, while it had work."""

    last: int
    at: int
    longest: int = 0


class Measures:
    """Collects while the checkers judge; `to_json` afterwards."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = random.Random(1)  # noqa: S311 - a sample, the same each time
        self.published = [0, 0, 0]
        self.acknowledged = [0, 0, 0]
        self.unknown = 0
        self.refused = 0
        self.received = 0
        self.doubled = 0
        self.with_dup = 0
        self.expected = [0, 0, 0]
        self.arrived = [0, 0, 0]
        self.delays: list[tuple[int, int]] = []
        """Time of arrival and delay, microseconds; a sample."""
        self._seen = 0
        self._first: int | None = None
        self._last = 0
        self._delivered = 0
        """When a message came last."""
        self.faults: list[_Fault] = []
        self._work: dict[str, _Work] = {}
        self.clients_away = 0
        self.reconnects = 0

    def on_connect_invoke(self, op: Operation) -> None:
        if op["connection"] > 1:
            self.reconnects += 1

    def on_publish_invoke(self, op: Operation) -> None:
        message = self._world.message
        assert message is not None
        self.published[message.qos] += 1
        if self._first is None:
            self._first = self._world.time
        work = self._work.get(op["process"])
        if work is None:
            self._work[op["process"]] = _Work(self._world.time, self._world.time)
        elif len(self._world.open.get(op["process"], ())) <= 1:
            work.last = self._world.time

    def on_publish_ok(self, op: Operation) -> None:
        message = self._world.message
        if message is None:
            return
        self.acknowledged[message.qos] += 1
        self._last = self._world.time
        if message.qos:
            self._sign(op["process"])

    def on_publish_info(self, _op: Operation) -> None:
        self.unknown += 1

    def on_publish_fail(self, _op: Operation) -> None:
        self.refused += 1

    def _sign(self, process: str) -> None:
        now = self._world.time
        work = self._work.get(process)
        if work is None:
            self._work[process] = _Work(now, now)
            return
        if now - work.last > work.longest:
            work.longest, work.at = now - work.last, work.last
        work.last = now

    def on_receive_ok(self, op: Operation) -> None:
        message = self._world.message
        if message is None:
            return
        self.received += 1
        if op.get("dup"):
            self.with_dup += 1
        now = self._world.time
        if self._world.arrivals > 1:
            self.doubled += 1
        elif self._world.arrivals == 1 and not message.is_will:
            self._delay(now, now - message.time)
        for fault in self.faults:
            # It strikes some time after its line: only the silence tells when.
            if fault.end is None or self._delivered < fault.end:
                since = max(self._delivered, fault.time)
                fault.silence = max(fault.silence or 0, now - since)
        self._delivered = now

    def _delay(self, now: int, delay: int) -> None:
        self._seen += 1
        if len(self.delays) < SAMPLES:
            self.delays.append((now, delay))
        elif (place := int(self._random.random() * self._seen)) < SAMPLES:
            self.delays[place] = (now, delay)

    def on_fault_invoke(self, op: Operation) -> None:
        world = self._world
        self.faults.append(_Fault(op["fault"], op.get("part", ""), world.time))

    def on_fault_ok(self, op: Operation) -> None:
        for fault in reversed(self.faults):
            if (fault.name, fault.part) == (op["fault"], op.get("part", "")) and fault.end is None:
                fault.end = self._world.time
                return

    on_fault_info = on_fault_ok

    def on_drain_ok(self, _op: Operation) -> None:
        self.clients_away = sum(
            1
            for connection in self._world.current.values()
            if connection.end in ("closed", "fail") or not connection.ok_line
        )

    def finish(self) -> None:
        """Count deliveries that were due by QoS, owed or not, as a user sees them arrive."""
        sessions = [session for session in self._world.sessions if session.all]
        matching: dict[str, list[Any]] = {}
        for message in self._world.messages.values():
            if message.is_will or message.empty:
                continue
            subs = matching.get(message.topic)
            if subs is None:
                subs = [
                    sub
                    for session in sessions
                    for sub in session.matching(message.topic)
                    if not sub.share
                ]
                matching[message.topic] = subs
            for sub in subs:
                if 0 < sub.ok_line < message.line and not sub.unsubscribe_line > 0:
                    self._count(message, sub)

    def _count(self, message: KnownMessage, sub: Any) -> None:
        qos = min(message.qos, sub.qos)
        self.expected[qos] += 1
        if message.number in sub.session.got:
            self.arrived[qos] += 1

    @property
    def rate(self) -> float:
        """Acknowledged messages a second, from the first PUBLISH to the last acknowledgement."""
        return self._rate(0)

    @property
    def rate_while_served(self) -> float:
        """Return the rate without the longest gap in the service of a publisher."""
        return self._rate(max((work.longest for work in self._work.values()), default=0))

    def _rate(self, without: int) -> float:
        passed = 0 if self._first is None else self._last - self._first - without
        return sum(self.acknowledged) / (passed / 1e6) if passed > 0 else 0.0

    def percentile(self, share: float) -> float | None:
        """Return a percentile of the time from PUBLISH to delivery, in seconds."""
        if not self.delays:
            return None
        ordered = sorted(delay for _, delay in self.delays)
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)))] / 1e6

    def to_json(self) -> dict[str, Any]:
        start = self._first or 0
        deliveries = sum(self.arrived)
        return {
            "published": self.published,
            "acknowledged": self.acknowledged,
            "refused": self.refused,
            "unknown": self.unknown,
            "received": self.received,
            "doubled": self.doubled,
            "doubled_share": self.doubled / deliveries if deliveries else None,
            "with_dup": self.with_dup,
            "due_by_qos": self.expected,
            "delivered_by_qos": self.arrived,
            "rate_per_second": round(self.rate, 1),
            "rate_while_served": round(self.rate_while_served, 1),
            "delay_seconds": {
                name: self.percentile(share)
                for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            },
            "reconnects": self.reconnects,
            "clients_away_at_the_end": self.clients_away,
            "outage_seconds": {
                process: {"longest": work.longest / 1e6, "at": (work.at - start) / 1e6}
                for process, work in sorted(self._work.items())
            },
            "faults": [
                {
                    "fault": fault.name,
                    "part": fault.part,
                    "at": (fault.time - start) / 1e6,
                    "seconds": None if fault.end is None else (fault.end - fault.time) / 1e6,
                    "silence": None if fault.silence is None else fault.silence / 1e6,
                }
                for fault in self.faults
            ],
            "series": [
                [round((at - start) / 1e6, 4), round(delay / 1e6, 6)]
                for at, delay in sorted(self.delays)
            ],
        }
