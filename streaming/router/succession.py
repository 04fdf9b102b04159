"""One router follows another without a gap.

One process is *the router* of a data directory: it holds the lock, and it alone notes positions,
changes rules and pauses them. Another may start beside it. It begins at the positions that are
noted, so it makes from there on all that the first one makes. Readers drop repetitions: gateways,
the runner of actions and the tables of rules by their marks. When it has come past an offset at
which the log ended after its start, in each partition, the first one may end. Then the lock is
free, and the one that waits for it is the router.

Each has a seat: a folder that no other process uses meanwhile.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from mqlake.errors import LogError, OperationalError
from streaming.engine.exclusive import Lock
from streaming.log.checkpoints import Offsets, checkpoint

NAME: Final = "router"
"""Name of the process, and of its folder in the data directory."""
_SEATS: Final = ("a", "b")
_LOCK: Final = "lock"

Marked = Mapping[str, tuple[int, ...]]
"""By log topic, an offset of each of its partitions."""


class Seat:
    """A folder of a router, `<data_dir>/router/<seat>`.

    Attributes:
        folder: Empty but for the notes of an engine that died.
        lock: Held by the process and its JVM.
        ended: The folders of others that do not run.

    Raises:
        OperationalError: All are taken.
    """

    def __init__(self, data_dir: Path) -> None:
        locks = {
            folder: Lock(folder / _LOCK)
            for folder in (data_dir.absolute() / NAME / seat for seat in _SEATS)
        }
        free = [folder for folder, lock in locks.items() if lock.try_take()]
        for folder, lock in locks.items():
            if folder not in free[:1]:
                lock.close()
        if not free:
            raise OperationalError("a router runs, and one beside it: wait until one has ended")
        self.folder, *self.ended = free
        self.lock = locks[self.folder]

    def checkpoint(self, query: str) -> Path:
        """Return the folder of Spark's checkpoint of a query."""
        return checkpoint(self.folder, query)


class Succession:
    """Decides whether this process is the router, or is to be.

    Args:
        data_dir: Data directory of the system.

    Attributes:
        lock: The router's; the JVM inherits it.
        is_router: Whether this process holds it.
    """

    def __init__(self, data_dir: Path) -> None:
        self.lock = Lock(data_dir.absolute() / NAME / _LOCK)
        self.is_router = False

    def take(self, timeout_seconds: float) -> None:
        """Be the router.

        Raises:
            OperationalError: Another one is, all the time.
        """
        self.lock.take(timeout_seconds)
        self.is_router = True

    def try_take(self) -> bool:
        """Be the router if there is none; return whether this process is."""
        self.is_router = self.is_router or self.lock.try_take()
        return self.is_router


class Flow:
    """Tells whether queries have come past where the log ended when they had begun.

    Args:
        mark: Appends a record to each partition of the sources, which all who read it pass over;
            returns where.
    """

    def __init__(self, mark: Callable[[], Marked]) -> None:
        self._mark = mark
        self._marked: Marked | None = None

    def is_there(
        self, reached: Mapping[str, Offsets], queries: Mapping[str, Mapping[str, int]]
    ) -> bool:
        """Tell it of these queries.

        Args:
            reached: By query the offset behind the last record that it has looked at.
            queries: By each of them and log topic, how many partitions it reads.
        """
        if self._marked is None:
            try:
                self._marked = self._mark()
            except LogError:
                return False  # some of them may be there; they mean nothing
        marked = self._marked
        return all(
            reached.get(query, {}).get(log_topic, {}).get(partition, 0) > offset
            for query, log_topics in queries.items()
            for log_topic, count in log_topics.items()
            for partition, offset in enumerate(marked[log_topic][:count])
        )
