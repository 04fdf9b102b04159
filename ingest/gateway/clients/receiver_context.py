"""The context of a gateway's receivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingest.gateway.base.context import Context
    from ingest.gateway.history.lookup import Lookup
    from ingest.gateway.load.log_room import LogRoom
    from ingest.gateway.retained.retained_quota import RetainedQuota
    from ingest.gateway.routing.publishing import Publisher


class ReceiverContext:
    """Parts of a gateway that all its receivers use.

    Args:
        context: Of the gateway.
        publisher: Appends to the log.
        lookup: Finds messages there.
        log_room: Where clients wait that found the log full.
        retained_quota: Says whether a message may be retained.
    """

    __slots__ = (
        "counters",
        "denials",
        "drops",
        "forwards",
        "log_room",
        "lookup",
        "most_levels",
        "of_tenants",
        "publisher",
        "retained_quota",
        "window",
    )

    def __init__(
        self,
        context: Context,
        publisher: Publisher,
        lookup: Lookup,
        log_room: LogRoom,
        retained_quota: RetainedQuota,
    ) -> None:
        self.counters = context.counters
        self.of_tenants = context.of_tenants
        self.denials = context.denials
        self.drops = context.drops
        self.forwards = context.settings.limits.when_retained_full == "forward"
        self.retained_quota = retained_quota
        self.window = context.settings.receive_maximum
        self.most_levels = context.settings.max_topic_levels
        self.publisher = publisher
        self.lookup = lookup
        self.log_room = log_room
