"""Whether a tenant may have one more retained message: asked before the log has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.retained import Retained
    from ingest.gateway.shared_limits import SharedLimits


class RetainedQuota:
    """Admits messages with RETAIN set.

    A gateway knows what is retained for a topic when it has a copy of its shard; at others each
    message counts as one of a new topic until the owner of the shard has it.

    Args:
        limits: Of tenants.
        retained: Copies of shards.
        shard_of: Returns the partition of `mqlake.inbound` of a key.
    """

    __slots__ = ("_limits", "_retained", "_shard_of")

    def __init__(
        self, limits: SharedLimits, retained: Retained, shard_of: Callable[[bytes], int]
    ) -> None:
        self._limits = limits
        self._retained = retained
        self._shard_of = shard_of

    def take(self, tenant: str, topic_name: str, payload: bytes) -> bool:
        """Count a message that is to be retained; False: its tenant has no room for it.

        One that removes what is retained, or takes no more room than that, is always welcome.
        """
        limits = self._limits
        kinds = ("retained_messages", "retained_bytes")
        if not payload or not any(limits.is_limited(kind, tenant, None) for kind in kinds):
            return True
        topic = topic_name.encode()
        known = self._retained.size(
            self._shard_of(tenant.encode() + b"/" + topic), tenant, topic_name
        )
        messages = 0 if known is not None else 1
        size = len(topic) + len(payload) - (known or 0)
        for kind, amount in zip(kinds, (messages, size), strict=True):
            if amount > 0 and limits.full(kind, tenant, None, amount):
                return False
        limits.let_in_retained(tenant, messages, size)
        return True
