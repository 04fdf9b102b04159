"""Figures of streaming queries: how far behind the log they are, how fast, how large.

Of a real-time query Spark tells only when a batch ends, so how far it has come is asked of its own
functions (`Positions.java`).
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.clock import Clock
from mqlake.errors import LogError
from streaming.jvm.bridge import JvmError, java_class, last_progress
from streaming.log.checkpoints import Offsets, by_number, committed, furthest
from streaming.log.sinks import Waiting

_logger = logging.getLogger(__name__)

READ_SECONDS: Final = 3.0
"""From one reading to the next; each asks the log for the ends of some log topics."""
RATE_SECONDS: Final = 10.0
_MOST_SEEN: Final = 100
_POSITIONS_CLASS: Final = "mqlake.log.Positions"

Progress = dict[str, Any]
"""Progress of a finished batch, in Spark's JSON."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A query that is looked at."""

    name: str
    progress: Callable[[], Progress | None] | None
    """Returns its last progress; None while it does not run."""
    checkpoint: Path
    restarts: int
    real_time: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    """Further figures."""


@dataclass(frozen=True, slots=True)
class Heap:
    """Heap of the JVM."""

    used_bytes: int = 0
    """Garbage included."""
    max_bytes: int = 0

    @property
    def figures(self) -> dict[str, int]:
        """Return its figures for a heartbeat, as `bin/mqlake doctor` reads them."""
        return {"heap_used_bytes": self.used_bytes, "heap_max_bytes": self.max_bytes}


@dataclass(slots=True)
class _Complete:
    """Up to when a query has taken all that was in the log.

    Attributes:
        seen: Ends of the log that it had not come to, oldest first, and by both clocks when the log
            was asked for them: what was acknowledged before that is below them.
        until_ms: UTC, of the latest of those that it has come to.
    """

    seen: deque[tuple[float, int, Offsets]] = field(default_factory=deque)
    until_ms: int | None = None
    apart: float = 0.0
    """Seconds from one of them to the next: the further behind, the more, as there is a bound."""

    def take(self, at: float, at_ms: int, ends: Offsets, positions: Offsets) -> int:
        """Return for how many milliseconds the log has had records that the query has not taken."""
        if _lag(ends, positions) == 0:
            self.seen.clear()
            self.until_ms, self.apart = at_ms, 0.0
            return 0
        while self.seen and _lag(self.seen[0][2], positions) == 0:
            self.until_ms = self.seen.popleft()[1]
        if not self.seen or at - self.seen[-1][0] >= self.apart:
            self.seen.append((at, at_ms, ends))
        if len(self.seen) > _MOST_SEEN:
            self.apart = 2 * max(self.apart, READ_SECONDS)
            self.seen = deque(list(self.seen)[::2])
        return round((at - self.seen[0][0]) * 1000)


@dataclass(slots=True)
class _Rate:
    """Records taken, of the last seconds."""

    taken: deque[tuple[float, int]] = field(default_factory=deque)
    partitions: int = 0

    def add(self, now: float, offsets: list[int]) -> float:
        """Return records a second."""
        total = sum(offsets)
        if len(offsets) != self.partitions or total < self.taken[-1][1]:
            # It knows of one more, or began again from an older position.
            self.taken.clear()
            self.partitions = len(offsets)
        self.taken.append((now, total))
        while len(self.taken) > 2 and now - self.taken[1][0] >= RATE_SECONDS:
            self.taken.popleft()
        at, before = self.taken[0]
        return round((total - before) / (now - at), 1) if now > at else 0.0


class QueryFigures:
    """Reads the figures of all queries now and then.

    Args:
        clock: For rates.
        watched: Returns the queries.
        ends: Returns per partition of a log topic the offset that its next record will get.
        positions: Returns by query how far the functions of real-time queries have come.
        heap: Returns how much of the Java heap is in use.
        undelivered: Returns records that wait for partitions that do not take them.

    Attributes:
        latest: The figures of each query, by name, as they were read last.
        heap: Heap of the JVM, as it was read last.
        undelivered: Number of waiting records, as it was read last.
    """

    def __init__(
        self,
        clock: Clock,
        watched: Callable[[], Iterable[Watched]],
        ends: Callable[[str], dict[int, int]],
        positions: Callable[[], dict[str, Offsets]],
        heap: Callable[[], Heap] = Heap,
        undelivered: Callable[[], list[Waiting]] = list,
    ) -> None:
        self._clock = clock
        self._watched = watched
        self._ends = ends
        self._positions = positions
        self._read_heap = heap
        self._read_undelivered = undelivered
        self._rates: dict[str, _Rate] = {}
        self._complete: dict[str, _Complete] = {}
        self.latest: dict[str, Any] = {}
        self._read_at = 0.0
        self.heap = Heap()
        self.undelivered: list[Waiting] = []

    def run(self, stopping: threading.Event) -> None:
        """Read until `stopping` is set; for a thread of its own."""
        while not stopping.is_set():
            try:
                begin = self._clock.monotonic()
                self.latest = self.read()
                self._read_at = begin
                self.heap = self._read_heap()
                self.undelivered = self._read_undelivered()
            except Exception:
                if stopping.is_set():
                    break
                _logger.exception("no figures of queries")
            stopping.wait(READ_SECONDS)

    def behind_ms(self, name: str) -> int | None:
        """Return for how long records have been in the log that a query may not have taken.

        That includes by how much the next reading is late: on a machine that has too much to do, so
        is what finds that out.
        """
        behind: int | None = self.latest.get(name, {}).get("behind_ms")
        if behind is None:
            return None
        late = self._clock.monotonic() - self._read_at - READ_SECONDS
        return behind + max(0, round(late * 1000))

    def read(self) -> dict[str, Any]:
        """Return the figures of each query, by name."""
        watched = list(self._watched())
        for name in self._rates.keys() - {one.name for one in watched}:
            del self._rates[name]
        for name in self._complete.keys() - {one.name for one in watched}:
            del self._complete[name]
        positions = self._positions()
        # What is acknowledged by now is below the ends that are asked for later.
        ends = _Ends(self._ends, self._clock.monotonic(), self._clock.now_ms())
        return {one.name: self._figures(one, positions.get(one.name, {}), ends) for one in watched}

    def _figures(self, one: Watched, reached: Offsets, ends: "_Ends") -> dict[str, Any]:
        figures: dict[str, Any] = {
            **one.more,
            "active": one.progress is not None,
            "real_time": one.real_time,
            "lag_records": None,
            "complete_until_ms": None,
            "behind_ms": None,
            "input_rows_per_second": 0.0,
            "batch_id": None,
            "batch_ms": None,
            "state_rows": 0,
            "restarts": one.restarts,
        }
        if one.progress is None:
            self._rates.pop(one.name, None)
            return figures
        progress = one.progress()
        if progress is not None:
            figures["batch_id"] = progress["batchId"]
            if not one.real_time:
                figures["batch_ms"] = progress.get("batchDuration")
            figures["state_rows"] = sum(
                state.get("numRowsTotal", 0) for state in progress.get("stateOperators", ())
            )
        done = _ends_of(progress) or committed(one.checkpoint) or {}
        positions = furthest(done, reached if one.real_time else {})
        if positions:
            offsets = [offset for found in positions.values() for offset in found.values()]
            rate = self._rates.setdefault(one.name, _Rate())
            figures["input_rows_per_second"] = rate.add(self._clock.monotonic(), offsets)
            found = ends.of(positions)
            complete = self._complete.setdefault(one.name, _Complete())
            if found is not None:
                figures["lag_records"] = _lag(found, positions)
                figures["behind_ms"] = complete.take(ends.at, ends.at_ms, found, positions)
            figures["complete_until_ms"] = complete.until_ms
        return figures


class _Ends:
    """The ends of log topics, each asked for once.

    Args:
        ask: Returns those of a log topic; it may raise LogError.
        at, at_ms: Before any was asked for, by both clocks.
    """

    def __init__(self, ask: Callable[[str], dict[int, int]], at: float, at_ms: int) -> None:
        self._ask = ask
        self._known: dict[str, dict[int, int] | None] = {}
        self.at = at
        self.at_ms = at_ms

    def of(self, log_topics: Iterable[str]) -> Offsets | None:
        """Return them; None when the log does not say."""
        found: Offsets = {}
        for log_topic in log_topics:
            if log_topic not in self._known:
                try:
                    self._known[log_topic] = self._ask(log_topic)
                except LogError:
                    self._known[log_topic] = None
            ends = self._known[log_topic]
            if ends is None:
                return None
            found[log_topic] = ends
        return found


def _lag(ends: Offsets, positions: Offsets) -> int:
    """Return how many offsets are left."""
    return sum(
        max(0, end - positions.get(log_topic, {}).get(partition, 0))
        for log_topic, found in ends.items()
        for partition, end in found.items()
    )


def progress_of(query: StreamingQuery | None) -> Callable[[], Progress | None] | None:
    """Return the reader of a query's last progress."""
    if query is None:
        return None

    def read() -> Progress | None:
        try:
            found = last_progress(query)
            progress: Progress | None = None if found is None else json.loads(found)
        except (JvmError, PySparkException):
            return None  # it is just being stopped
        return progress

    return read


def read_positions(spark: SparkSession) -> dict[str, Offsets]:
    """Return by query how far the functions of real-time queries have come in this JVM."""
    return parse_positions(java_class(spark, _POSITIONS_CLASS).reached())


def read_done(spark: SparkSession) -> dict[str, Offsets]:
    """Return by query the offsets before which the log has all that comes of a record."""
    return parse_positions(java_class(spark, _POSITIONS_CLASS).done())


def read_heap(spark: SparkSession) -> Heap:
    """Return how much of the Java heap is in use."""
    runtime = java_class(spark, "java.lang.Runtime").getRuntime()
    return Heap(runtime.totalMemory() - runtime.freeMemory(), runtime.maxMemory())


def parse_positions(text: str) -> dict[str, Offsets]:
    """Read the lines of `Positions.java`."""
    found: dict[str, Offsets] = {}
    for line in text.splitlines():
        query, log_topic, partition, offset = line.split(" ")
        found.setdefault(query, {}).setdefault(log_topic, {})[int(partition)] = int(offset)
    return found


def _ends_of(progress: Progress | None) -> Offsets | None:
    """Return up to where the last batch went in the log."""
    for source in (progress or {}).get("sources", ()):
        ends = source.get("endOffset")
        if isinstance(ends, dict):  # a source that is not the log counts seconds
            return by_number(ends)
    return None
