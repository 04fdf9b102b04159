"""Presence of gateways: the last heartbeat of each in `mqlake.gateways`.

Only the time since the last heartbeat counts, by our own clock: clocks of machines differ. By how
much a gateway's differs from the log's says the log, which puts its own time to each heartbeat.
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from api.log.following import Followed, KeptInMemory
from mqlake.clock import Clock
from mqlake.errors import InvalidRecord
from mqlake.processes.latency import since
from mqlake.records.gateway_heartbeat import GatewayHeartbeat, decode_gateway_heartbeat
from mqlake.records.messages import NO_GATEWAY

RATE_WORDS: Final = 5
"""Heartbeats that rates are over: two seconds."""

LATENCY_WORDS: Final = 21
"""Heartbeats that latencies are over: ten seconds, for percentiles need many messages."""

CLOCK_WORDS: Final = 20
"""Heartbeats that judge a clock: ten seconds. One may wait for the log for long, hardly all."""

DEAD_SECONDS: Final = 3.0
"""A gateway that has not been heard of for so long is dead; the other gateways think the same."""


@dataclass(frozen=True, slots=True)
class Presence:
    """The last heartbeat of a gateway."""

    name: str
    heartbeat: GatewayHeartbeat
    is_alive: bool
    per_second: dict[str, float] = field(default_factory=dict)
    """Rate of each of its counters, over its last few heartbeats."""
    latency: dict[str, list[int]] = field(default_factory=dict)
    """Messages of each stage by class of `mqlake.processes.latency`, of its last heartbeats."""
    clock_ahead_ms: int | None = None
    """How far its clock is ahead of the log's; negative: behind. None: it is not known."""


@dataclass(slots=True)
class _Heard:
    heartbeat: GatewayHeartbeat
    heard_at: float
    counted: "deque[tuple[int, dict[str, int]]]"
    """When, by its own clock, and how much; of this run of it."""
    timed: "deque[dict[str, list[int]]]"
    """Messages by stage and class, in its last few heartbeats."""
    ahead_ms: "deque[int]"
    """How far its clock was ahead when the log took its heartbeats, less the way to the log."""


class Gateways(KeptInMemory):
    """The gateways that have not left in an orderly way; safe to use from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._words: dict[str, _Heard] = {}

    def forget(self) -> None:
        """Begin again."""
        with self._lock:
            self._words.clear()

    def complete(self) -> None:
        """Nothing waits for this."""

    def take(self, records: Sequence[Followed], *, is_old: bool) -> list[InvalidRecord]:
        """Apply records of `mqlake.gateways`."""
        refused: list[InvalidRecord] = []
        for one in records:
            try:
                self.receive(one.key, one.value, is_old=is_old, logged_at_ms=one.at_ms)
            except InvalidRecord as exc:
                refused.append(exc)
        return refused

    def receive(
        self, key: bytes, value: bytes | None, *, is_old: bool, logged_at_ms: int = 0
    ) -> None:
        """Take a record.

        Args:
            key: Name of the gateway.
            value: Its heartbeat; None: it has left.
            is_old: It was in the log already: how old it is only the gateway's clock can say.
            logged_at_ms: When the log took it, by the log's clock; 0: unknown.

        Raises:
            InvalidRecord: It is of another form.
        """
        if key.startswith(NO_GATEWAY):
            return
        name = key.decode(errors="replace")
        if value is None:
            with self._lock:
                self._words.pop(name, None)
            return
        said = decode_gateway_heartbeat(value)
        if not said.at:
            raise InvalidRecord("gateway record does not say when it was written")
        heard_at = self._clock.monotonic()
        if is_old:
            heard_at -= max(0.0, (self._clock.now_ms() - said.at) / 1000)
        with self._lock:
            before = self._words.get(name)
            is_same = before and before.heartbeat.incarnation == said.incarnation
            counted = before.counted if before and is_same else deque(maxlen=RATE_WORDS)
            counted.append((said.at, said.counters))
            timed = before.timed if before and is_same else deque(maxlen=LATENCY_WORDS)
            timed.append(said.latency)
            ahead = before.ahead_ms if before and is_same else deque(maxlen=CLOCK_WORDS)
            if logged_at_ms:
                ahead.append(said.at - logged_at_ms)
            self._words[name] = _Heard(said, heard_at, counted, timed, ahead)

    def all(self) -> list[Presence]:
        """Return them by name."""
        now = self._clock.monotonic()
        with self._lock:
            return [
                Presence(
                    name,
                    heard.heartbeat,
                    is_alive=now - heard.heard_at < DEAD_SECONDS,
                    per_second=_rates(heard.counted),
                    latency=_latency(heard.timed),
                    # The heartbeat that was on its way for the shortest time tells most.
                    clock_ahead_ms=max(heard.ahead_ms, default=None),
                )
                for name, heard in sorted(self._words.items())
            ]

    def get(self, name: str) -> Presence | None:
        return next((one for one in self.all() if one.name == name), None)


def _rates(counted: Iterable[tuple[int, dict[str, int]]]) -> dict[str, float]:
    words = list(counted)
    (first_ms, first), (last_ms, last) = words[0], words[-1]
    seconds = (last_ms - first_ms) / 1000
    if seconds <= 0:
        return {}
    return {name: round((count - first.get(name, 0)) / seconds, 2) for name, count in last.items()}


def _latency(timed: "deque[dict[str, list[int]]]") -> dict[str, list[int]]:
    first, last = timed[0], timed[-1]
    return {stage: since(counts, first[stage]) for stage, counts in last.items() if stage in first}
