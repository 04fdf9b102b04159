"""Decides whether a client may have one more message retained, before the log has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.gateway.limits.shared_limits import OF_GATEWAY
from mqlake.records.tenants import RETAINED

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.limits.shared_limits import SharedLimits
    from ingest.gateway.retained.retained import Retained
    from ingest.gateway.retained.retained_publishers import RetainedPublisher, RetainedPublishers


class RetainedQuota:
    """Admits messages with RETAIN set.

    A gateway knows a topic's retained message when it has a copy of its shard; at others each
    message counts as one of a new topic until the owner of the shard has it.

    Args:
        limits: Limits of tenants, and of the gateway.
        publishers: Limits of clients and users.
        retained: Copies of shards.
        shard_of: Returns the partition of `mqlake.inbound` of a key.
    """

    __slots__ = ("_limits", "_publishers", "_retained", "_shard_of")

    def __init__(
        self,
        limits: SharedLimits,
        publishers: RetainedPublishers,
        retained: Retained,
        shard_of: Callable[[bytes], int],
    ) -> None:
        self._limits = limits
        self._publishers = publishers
        self._retained = retained
        self._shard_of = shard_of

    def take(self, publisher: RetainedPublisher, topic_name: str, payload: bytes) -> str:
        """Count a message that is to be retained; return whose limit it exceeds, "": none.

        One that removes the retained message, or takes no more room than that, is always let in.
        """
        tenant, limits, publishers = publisher.tenant, self._limits, self._publishers
        is_limited = any(limits.is_limited(kind, tenant, None) for kind in RETAINED)
        if not payload or not (is_limited or publishers.is_needed):
            return ""
        topic = topic_name.encode()
        shard, size = self._shard_of(tenant.encode() + b"/" + topic), len(topic) + len(payload)
        if publishers.is_needed and (whose := publishers.full(publisher, shard, topic_name, size)):
            return whose
        if is_limited and (whose := self._take_shared(tenant, shard, topic_name, size)):
            return whose
        if publishers.is_needed:
            publishers.let_in(publisher, topic_name, size)
        return ""

    def _take_shared(self, tenant: str, shard: int, topic_name: str, size: int) -> str:
        """Count a message for its tenant and the gateway; return which is full, "": neither."""
        known = self._retained.holder(shard, tenant, topic_name)
        amounts = (1, size) if known is None else (0, size - known.size)
        for kind, amount in zip(RETAINED, amounts, strict=True):
            if amount > 0 and (whose := self._limits.full(kind, tenant, None, amount)):
                return "the gateway" if whose == OF_GATEWAY else "its tenant"
        self._limits.let_in_retained(tenant, *amounts)
        return ""
