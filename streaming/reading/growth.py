"""The part of router and lake in the log's growth (`mqlake.log.growth`): readers, cut and end.

Each query that needs the order of topics reads the partitions that it is assigned, and no others.
It reads those that are new once it has passed the cut: it is started again for that. History needs
no order, and reads all that there are.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from mqlake.clock import Clock
from mqlake.log.growth import OTHERS_SECONDS, Growth, GrowthStep, Heard, encode_growth, waits_for
from mqlake.records.messages import GATEWAYS, GROWTH_KEY, INBOUND
from rules.actions.contract import NewRecord
from streaming.engine.looking import look_again
from streaming.log.checkpoints import Offsets
from streaming.reading.log_retention import RetainingReader

_logger = logging.getLogger(__name__)

FINISH_SECONDS: Final = 1.0
"""How often the lake looks whether all have passed the cut."""

QueryPositions = Callable[[], Offsets | None]
"""Returns how far a query has come."""


class GrowthLook(Protocol):
    """Implemented by `mqlake.log.growth_watch.GrowthWatch`, which describes it."""

    growth: Growth | None
    made_with: int

    def look(self, timeout_seconds: float = 0.0) -> None: ...
    def read_to_end(self) -> None: ...
    def heard(self) -> dict[str, Heard]: ...


class LogGrowth:
    """Says of how many partitions of messages each query of an application reads.

    Args:
        watch: Says how far the growth is.
    """

    def __init__(self, watch: GrowthLook) -> None:
        self._watch = watch
        self._reading: dict[str, int] = {}

    @property
    def used(self) -> int:
        """How many partitions messages go into, as of just now; from any thread."""
        self._watch.look()
        growth = self._watch.growth
        return self._watch.made_with if growth is None else growth.used

    @property
    def shards(self) -> int:
        """How many the retained messages have."""
        return self._watch.made_with

    @property
    def is_under_way(self) -> bool:
        growth = self._watch.growth
        return growth is not None and not growth.is_done

    def told(self) -> str:
        """Say how far it is; empty when there is nothing to do."""
        growth = self._watch.growth
        if growth is None or growth.is_done:
            return ""
        return f"; the log grows from {growth.before} to {growth.after} partitions: {growth.step}"

    def begin(self, query: str, done: Offsets | None) -> int:
        """Note that a query begins, and return how many partitions of messages it reads.

        Args:
            query: Its name.
            done: How far it has come; None: nowhere.
        """
        self._watch.look()
        self._reading[query] = count = self._readable(done)
        return count

    def reads(self, query: str) -> int:
        """Return of how many a query reads that has begun."""
        return self._reading[query]

    def due(self, running: Mapping[str, QueryPositions]) -> list[str]:
        """Return the queries that may read more than they do: they are to be started again."""
        self._watch.look()
        return [
            query
            for query, reached in running.items()
            if (count := self._reading.get(query)) is not None and self._readable(reached()) > count
        ]

    def _readable(self, done: Offsets | None) -> int:
        growth = self._watch.growth
        if growth is None:
            return self._watch.made_with
        return growth.readable((done or {}).get(INBOUND, {}))


class Cut:
    """Makes the cut; the router's part.

    Args:
        watch: Says how far the growth is.
        ends: Returns the offset that the next record of each partition of a log topic gets.
        append: Appends records to the log, and waits until they are safe.
        clock: To find those that have been silent.
    """

    def __init__(
        self,
        watch: GrowthLook,
        ends: Callable[[str], dict[int, int]],
        append: Callable[[list[NewRecord]], None],
        clock: Clock,
    ) -> None:
        self._watch = watch
        self._ends = ends
        self._append = append
        self._clock = clock
        self._moved_at: float | None = None

    def look(self) -> None:
        """Make it when it is due.

        Raises:
            LogError: The log does not answer, or does not take it; to be tried again.
        """
        growth = self._watch.growth
        if growth is None or growth.step is not GrowthStep.MOVED:
            self._moved_at = None
        elif self._has_moved(growth):
            _say(self._append, growth.cut_at(self._ends(INBOUND)))

    def _has_moved(self, growth: Growth) -> bool:
        """Tell whether nothing more comes into an old partition of a topic that has moved."""
        now = self._clock.monotonic()
        if self._moved_at is None:
            self._moved_at = now
        if now - self._moved_at < OTHERS_SECONDS:
            return False
        # All heartbeats after those that are read now are of gateways that know of this step.
        self._watch.read_to_end()
        return self._watch.growth == growth and not waits_for(growth, self._watch.heard(), now)


class Finish:
    """Says that the growth is done once all who read messages have passed the cut; the lake's part.

    Args:
        watch: Says how far the growth is.
        readers: Returns all who read messages; None while they are not known.
        append: As of `Cut`.

    Attributes:
        waits_for: Those who have not passed it.
    """

    def __init__(
        self,
        watch: GrowthLook,
        readers: Callable[[], Iterable[RetainingReader] | None],
        append: Callable[[list[NewRecord]], None],
    ) -> None:
        self._watch = watch
        self._readers = readers
        self._append = append
        self.waits_for: list[str] = []

    def run(self, stopping: threading.Event) -> None:
        """Look now and then until `stopping` is set; for a thread of its own."""
        look_again(self.look, FINISH_SECONDS, stopping, _logger, "growth waits")

    def look(self) -> None:
        """Say it when it is so.

        Raises:
            LogError: The log does not take it; to be tried again.
        """
        self._watch.look()
        growth = self._watch.growth
        self.waits_for = []
        if growth is None or growth.step is not GrowthStep.CUT:
            return
        readers = self._readers()
        if readers is None:
            return
        self.waits_for = [
            reader.name
            for reader in readers
            if growth.readable(reader.positions.get(INBOUND) or {}) < growth.after
        ]
        if not self.waits_for:
            self._watch.read_to_end()  # it may have been said, and the log may grow again
            if self._watch.growth == growth:
                _say(self._append, growth.finished())


def _say(append: Callable[[list[NewRecord]], None], growth: Growth) -> None:
    append([NewRecord(GATEWAYS, GROWTH_KEY, encode_growth(growth), [])])
    fields = {"step": growth.step, "before": growth.before, "after": growth.after}
    _logger.info("the log grows", extra={"fields": {**fields, "cut": growth.cut}})
