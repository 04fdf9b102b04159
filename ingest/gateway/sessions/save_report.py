"""The log's answer to the records of one save of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.session.shard.subscription_records import SubscriptionRecords
    from mqlake.errors import LogError
    from mqlake.records.sessions import StoredSubscription

Changes: TypeAlias = "list[tuple[str, StoredSubscription | None]]"
"""Topic filters with the content of their own records; None: the record is to be removed."""


class SaveReport:
    """Hears of several records, and reports once: the log has all of them, or lacks one.

    Failed changes are written with the next record.

    Args:
        records: Says which records of the session are to be written.
        changes: Changes of subscriptions whose records are being written.
        on_saved: Called once, with None when the log has all records, else with the error.
        has_session: Tells that the session's record is being written, too.
    """

    __slots__ = ("_changes", "_has_session", "_left", "_on_saved", "_records")

    def __init__(
        self,
        records: SubscriptionRecords,
        changes: Changes,
        on_saved: Callable[[LogError | None], None],
        *,
        has_session: bool,
    ) -> None:
        self._records = records
        self._changes = changes
        self._has_session = has_session
        self._left = len(changes) + has_session
        self._on_saved: Callable[[LogError | None], None] | None = on_saved

    def __call__(self, error: LogError | None) -> None:
        self._left -= 1
        on_saved = self._on_saved
        if on_saved is None or (error is None and self._left):
            return
        if error is not None:
            self.fail()
        self._on_saved = None
        on_saved(error)

    def fail(self) -> None:
        """Put the changes back, and report nothing more: one of them could not be written."""
        self._on_saved = None
        records = self._records
        records.put_back(topic_filter for topic_filter, _ in self._changes)
        records.is_session_changed = records.is_session_changed or self._has_session
