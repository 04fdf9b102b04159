"""Records that the API writes: appended, and taken at once by the view that has them."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from api.log.appending import LogAppender
from api.log.following import Followed, Taker
from api.log.materialised import MaterialisedView
from mqlake.clock import Clock
from mqlake.errors import MqlakeError
from mqlake.log.blocking import Append
from mqlake.records.versions import VERSION_HEADER

Key = TypeVar("Key")
Value = TypeVar("Value")
View = TypeVar("View", bound=MaterialisedView)


class NotThere(MqlakeError):  # noqa: N818 - it names the missing thing
    """There is none of this name, or none that is for the caller."""


class InTheWay(MqlakeError):  # noqa: N818
    """The name is taken, something needs the item to delete, or there is no room for another."""


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[Key, Value]):
    """How records of a kind are written; they are in the one partition of their log topic.

    Attributes:
        log_topic: Log topic of the records.
        key: Encodes their keys.
        value: Encodes their values.
        named: A record in words, from its key: for errors.
        has_version: A header says the version; else the value does.
    """

    log_topic: str
    key: Callable[[Key], bytes]
    value: Callable[[Value], bytes]
    named: Callable[[Key], str]
    has_version: bool = True


class Repository(Generic[Key, Value, View]):
    """Writes changes of one kind; safe to use from any thread.

    A change looks at the view and writes under one lock. No other process of the API may write the
    kind if that has to number something.

    Args:
        log: Log that takes the records.
        view: Has all that is there; takes written records at once.
        clock: For the times in records.
    """

    kind: RecordKind[Key, Value]

    def __init__(self, log: LogAppender, view: View, clock: Clock) -> None:
        self._log = log
        self._view = view
        self._clock = clock
        self._lock = threading.Lock()

    def write(self, changes: Sequence[tuple[Key, Value | None]]) -> None:
        """Append records in their order; None for the value: it is deleted.

        Raises:
            LogError: The log does not answer; all changes raise it too.
        """
        kind = self.kind
        records = [
            (kind.key(key), None if value is None else kind.value(value)) for key, value in changes
        ]
        if records:
            self._append(records, kind.named(changes[0][0]))

    def _delete(self, keys: Iterable[bytes], what: str) -> None:
        """Delete records of any kind that the view takes."""
        self._append([(key, None) for key in keys], what)

    def _append(self, records: Sequence[tuple[bytes, bytes | None]], what: str) -> None:
        log_topic, has_version = self.kind.log_topic, self.kind.has_version
        append(self._log, self._view, log_topic, records, what=what, has_version=has_version)


def append(
    log: LogAppender,
    view: Taker,
    log_topic: str,
    records: Sequence[tuple[bytes, bytes | None]],
    *,
    what: str,
    has_version: bool = True,
) -> None:
    """Append records to a log topic of one partition; its view here takes them at once.

    Raises:
        LogError: The log does not answer.
    """
    headers = [VERSION_HEADER] if has_version else []
    appends = [Append(0, key, value, headers) for key, value in records]
    offsets = log.append_all(log_topic, appends, what=what)
    taken = [
        Followed(log_topic, offset, key, value)
        for offset, (key, value) in zip(offsets, records, strict=True)
    ]
    view.take(taken, is_old=False)
