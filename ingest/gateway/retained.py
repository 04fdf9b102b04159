"""The retained messages, as the gateway sends them to new subscriptions."""

from typing import NamedTuple

from ingest.gateway.outbound import OutboundMessage
from mqlake.matching import filter_matches


class Page(NamedTuple):
    """A part of the retained messages that match a filter, in the order of their topic names."""

    messages: list[OutboundMessage]
    next_after: str
    """Where the next page begins; empty when this was the last."""


class Retained:
    def __init__(self) -> None:
        self._messages: dict[tuple[str, str], OutboundMessage] = {}

    def __len__(self) -> int:
        return len(self._messages)

    def apply(self, tenant: str, message: OutboundMessage) -> None:
        """Take a message with RETAIN set: it replaces the one of its topic."""
        key = (tenant, message.topic_name)
        if message.payload:
            self._messages[key] = message
        else:
            self._messages.pop(key, None)

    def page(self, tenant: str, topic_filter: str, after: str, limit: int, now_ms: int) -> Page:
        found = sorted(
            (topic_name, message)
            for (owner, topic_name), message in self._messages.items()
            if owner == tenant
            and topic_name > after
            and not message.is_expired(now_ms)
            and filter_matches(topic_filter, topic_name)
        )
        rows = [message for _, message in found[:limit]]
        return Page(rows, rows[-1].topic_name if len(found) > limit else "")

    def flush(self) -> None:
        pass
