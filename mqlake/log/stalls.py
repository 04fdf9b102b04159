"""Finds partitions that a consumer has left aside: the log has more of them, and it gives nothing.

librdkafka drops an order to fetch that another one overtakes, as may happen when the assignment
changes while it connects again; it is not repeated (confluentinc/librdkafka#5591). Pure; time
comes in.
"""

from collections.abc import Mapping
from typing import Final

DOUBT_SECONDS: Final = 5.0
"""How long after a change or an error it is looked first: by then all is fetched again."""
AGAIN_SECONDS: Final = 2.0
LOOKS: Final = 3
"""Looks in a row at the same offset before a partition counts as left aside."""


class StallWatch:
    """Looks only after something has happened, so a reader that just follows pays nothing."""

    def __init__(self) -> None:
        self._due_at: float | None = None
        self._seen: dict[int, tuple[int, int]] = {}
        self._found: dict[int, int] = {}

    def doubt(self, now: float) -> None:
        """Note a change of the partitions followed, or an error."""
        self._due_at = now + DOUBT_SECONDS
        self._seen.clear()

    def is_due(self, now: float) -> bool:
        return self._due_at is not None and now >= self._due_at

    def postpone(self, now: float) -> None:
        """The log does not say where it ends: look again."""
        self._due_at = now + AGAIN_SECONDS

    def look(self, now: float, offsets: Mapping[int, int], ends: Mapping[int, int]) -> list[int]:
        """Return which partitions are left aside; each offset is reported once.

        It may be that there is no record from an offset to the end, as compaction removes them.

        Args:
            now: In monotonic seconds.
            offsets: By partition, the next one to be handed over.
            ends: By partition, where the log ends.
        """
        behind = {p: at for p, at in offsets.items() if at < ends.get(p, 0)}
        self._seen = {
            p: (at, self._seen[p][1] + 1 if self._seen.get(p, (None, 0))[0] == at else 1)
            for p, at in behind.items()
            if self._found.get(p) != at
        }
        self._due_at = now + AGAIN_SECONDS if self._seen else None
        left = [p for p, (_, looks) in self._seen.items() if looks >= LOOKS]
        self._found |= {p: behind[p] for p in left}
        return left
