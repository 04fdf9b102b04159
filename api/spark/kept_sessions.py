"""Sessions of Spark that are kept for the next query: to open one takes longer than to ask."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from mqlake.processes.query_application import Use


class Keepable(Protocol):
    """A session, as `api.spark.connect.Spark` is one."""

    def is_there(self, use: Use) -> bool:
        """Tell whether Spark, which runs for this use, has the session still."""
        ...

    def close(self) -> None: ...


Session = TypeVar("Session", bound=Keepable)


class KeptSessions(Generic[Session]):
    """Lends each session to one at a time; safe to use from any thread.

    Args:
        open_: Opens one.
        most: Number that is kept; more are opened when more ask at once.
        is_harmless: Tells whether a session is well after an error. After others it is closed.
    """

    def __init__(
        self, open_: Callable[[Use], Session], most: int, is_harmless: Callable[[Exception], bool]
    ) -> None:
        self._open = open_
        self._most = most
        self._is_harmless = is_harmless
        self._lock = threading.Lock()
        self.idle: list[Session] = []

    @contextmanager
    def lend(self, use: Use) -> Iterator[Session]:
        """Hand out a session for the length of a `with` block.

        Raises:
            SparkAway: None can be opened.
        """
        session = self._take(use) or self._open(use)
        is_well = False
        try:
            yield session
            is_well = True
        except Exception as exc:
            is_well = self._is_harmless(exc)
            raise
        finally:
            with self._lock:
                is_kept = is_well and len(self.idle) < self._most
                if is_kept:
                    self.idle.append(session)
            if not is_kept:
                _close(session)

    def close(self) -> None:
        """Close those that are not in use."""
        with self._lock:
            idle, self.idle = self.idle, []
        for session in idle:
            _close(session)

    def _take(self, use: Use) -> Session | None:
        """Return a session that is kept, if Spark has it still."""
        while True:
            with self._lock:
                if not self.idle:
                    return None
                session = self.idle.pop()
            if session.is_there(use):
                return session
            _close(session)


def _close(session: Keepable) -> None:
    with contextlib.suppress(Exception):  # it is gone, or goes with Spark
        session.close()
