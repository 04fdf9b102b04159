"""A brake for callers whose queries end Spark: after the second time they wait, others do not.

Whose query it was is known when no other one was lost with it. Each life of Spark counts once.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from mqlake.errors import OperationalError

MOST_ENDS: Final = 2
"""Ends of Spark by one caller before it has to wait."""
WITHIN_SECONDS: Final = 600.0
"""So long it is known who has ended it."""
_MOST_LIVES: Final = 1_000


class EndsSparkError(OperationalError):
    """A caller's queries have ended Spark too often.

    Attributes:
        retry_seconds: After which he may ask again.
    """

    def __init__(self, retry_seconds: int) -> None:
        super().__init__(
            f"your queries have ended the query application {MOST_ENDS} times within "
            f"{WITHIN_SECONDS:g} s, for all: ask again in {retry_seconds} s, with queries that "
            "need less memory"
        )
        self.retry_seconds = retry_seconds


class _Life:
    def __init__(self, at: float) -> None:
        self.ended_at = at
        self.lost = Counter[str]()
        self.is_proven = False

    @property
    def guilty(self) -> str | None:
        """The caller whose query has ended it; None when it may have been that of another."""
        callers = list(self.lost)
        if len(callers) != 1:
            return None
        # One of several queries of his, or the only one.
        return callers[0] if self.is_proven or self.lost.total() > 1 else None


class Brake:
    """Knows who has ended Spark; safe to use from any thread.

    Args:
        now: Returns seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._lives: dict[int, _Life] = {}

    def note(self, caller: str, life: int, *, is_proven: bool) -> None:
        """Note that Spark has ended for want of memory, or had to be ended, in a caller's query.

        Args:
            caller: Whose query it was; empty: the system's own, which does not end it.
            life: Life of Spark: the number of its process.
            is_proven: It is known to have been this query.
        """
        if not caller:
            return
        with self._lock:
            self._forget_old()
            known = self._lives.setdefault(life, _Life(self._now()))
            known.lost[caller] += 1
            known.is_proven |= is_proven
            while len(self._lives) > _MOST_LIVES:
                del self._lives[next(iter(self._lives))]

    def check(self, caller: str) -> None:
        """Let a caller ask.

        Raises:
            EndsSparkError: He has ended Spark too often.
        """
        with self._lock:
            self._forget_old()
            ends = sorted(one.ended_at for one in self._lives.values() if one.guilty == caller)
        if len(ends) >= MOST_ENDS:
            free_at = ends[-MOST_ENDS] + WITHIN_SECONDS
            raise EndsSparkError(max(1, math.ceil(free_at - self._now())))

    def _forget_old(self) -> None:
        oldest = self._now() - WITHIN_SECONDS
        for life, known in list(self._lives.items()):
            if known.ended_at <= oldest:
                del self._lives[life]
