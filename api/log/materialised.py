"""Materialised view of a log topic, in memory: records of the API itself are taken at once."""

import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from api.log.following import Followed, KeptInMemory
from mqlake.errors import InvalidRecord

_NOTHING: Final = -1
"""Offset of a key that has not been seen."""


class MaterialisedView(KeptInMemory):
    """The newest value of each key; safe to use from any thread.

    Attributes:
        is_complete: All that was in the log when the reading began is here.
    """

    is_complete: bool

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begin_anew()

    def forget(self) -> None:
        """Begin again."""
        with self._changed:
            self._begin_anew()

    def complete(self) -> None:
        with self._changed:
            self.is_complete = True
            self._changed.notify_all()

    def take(self, records: Sequence[Followed], *, is_old: bool) -> list[InvalidRecord]:
        """Apply records; those that were applied before change nothing."""
        refused: list[InvalidRecord] = []
        with self._changed:
            for record in records:
                # The API takes its own records before the follower sees them.
                if record.offset <= self._offsets.get(record.key, _NOTHING):
                    continue
                self._offsets[record.key] = record.offset
                try:
                    self._take(record.key, record.value)
                except InvalidRecord as exc:
                    refused.append(exc)
            self._changed.notify_all()
        return refused

    def _begin_anew(self) -> None:
        """Forget all; a subclass that keeps more forgets that too."""
        self.is_complete = False
        self._offsets: dict[bytes, int] = {}

    @abstractmethod
    def _take(self, data: bytes, value: bytes | None) -> None:
        """Apply a record, by its key; the lock is held.

        Raises:
            InvalidRecord: It cannot be read.
        """
