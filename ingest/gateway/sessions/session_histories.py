"""Histories that subscriptions of one session get before they are in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqlake.records.offsets import cut, have_reached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.gateway.sessions.histories import SubscribeHistory


class SessionHistories:
    """Those of one session, by topic filter; few sessions ever have one."""

    __slots__ = ("_by_filter",)

    def __init__(self) -> None:
        self._by_filter: dict[str, SubscribeHistory] = {}

    def add(self, topic_filter: str, history: SubscribeHistory) -> None:
        """Have a subscription get a history."""
        self._by_filter[topic_filter] = history

    def leave(self, topic_filter: str) -> None:
        """Let go of the history of a subscription, if it has one."""
        history = self._by_filter.pop(topic_filter, None)
        if history is not None:
            history.leave(topic_filter)

    def is_catching_up(self, topic_filter: str) -> bool:
        """Tell whether a subscription still gets its history, and nothing else."""
        history = self._by_filter.get(topic_filter)
        return history is not None and not history.is_live

    def each(self) -> list[SubscribeHistory]:
        """Return each history once."""
        return list(dict.fromkeys(self._by_filter.values()))

    def cut(self, log_ends: Sequence[int]) -> None:
        """Count from the end of a log that has lost messages which they know."""
        for history in self.each():
            history.missed.cursor = cut(history.missed.cursor, log_ends)

    def settle(self, next_offsets: Sequence[int]) -> bool:
        """Forget those that are live and that the gateway has come past; whether there were any."""
        over = [
            history
            for history in self.each()
            if history.is_live and have_reached(next_offsets, history.missed.cursor)
        ]
        for history in over:
            for topic_filter in list(history.topic_filters):
                self.leave(topic_filter)
        return bool(over)
