"""Decides whether one more message may be retained, before the log has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.gateway.limits.shared_limits import OF_GATEWAY
from mqlake.records.tenants import RETAINED

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.limits.shared_limits import SharedLimits
    from ingest.gateway.retained.retained import Retained


class RetainedQuota:
    """Admits messages with RETAIN set.

    A gateway knows a topic's retained message when it has a copy of its shard; at others each
    message counts as one of a new topic until the owner of the shard has it.

    Args:
        limits: Limits of tenants, and of the gateway.
        retained: Copies of shards.
        shard_of: Returns the partition of `mqlake.inbound` of a key.
    """

    __slots__ = ("_limits", "_retained", "_shard_of")

    def __init__(
        self,
        limits: SharedLimits,
        retained: Retained,
        shard_of: Callable[[bytes], int],
    ) -> None:
        self._limits = limits
        self._retained = retained
        self._shard_of = shard_of

    def take(self, tenant: str, topic_name: str, payload: bytes) -> str:
        """Count a message that is to be retained; return whose limit it exceeds, "": none.

        One that removes the retained message, or takes no more room than that, is always let in.
        """
        if not payload or not any(self._limits.is_limited(kind, tenant, None) for kind in RETAINED):
            return ""
        topic = topic_name.encode()
        shard, size = self._shard_of(tenant.encode() + b"/" + topic), len(topic) + len(payload)
        known = self._retained.size(shard, tenant, topic_name)
        amounts = (1, size) if known is None else (0, size - known)
        for kind, amount in zip(RETAINED, amounts, strict=True):
            if amount > 0 and (whose := self._limits.full(kind, tenant, None, amount)):
                return "the gateway" if whose == OF_GATEWAY else "its tenant"
        self._limits.let_in_retained(tenant, *amounts)
        return ""
