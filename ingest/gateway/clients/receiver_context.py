"""The context of a gateway's receivers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingest.gateway.base.counters import GatewayCounters
    from ingest.gateway.base.denials import Denials
    from ingest.gateway.base.drops import Drops
    from ingest.gateway.base.reports import Reports
    from ingest.gateway.base.tenant_counters import CountersOfTenants
    from ingest.gateway.history.lookup import Lookup
    from ingest.gateway.load.log_room import LogRoom
    from ingest.gateway.retained.retained_quota import RetainedQuota
    from ingest.gateway.routing.publishing import Publisher


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverContext:
    """Parts of a gateway that all its receivers use.

    Attributes:
        counters: Counters of messages.
        of_tenants: Counters of the gateway's work for the clients of each tenant.
        denials: Counts attempts of clients without the right.
        drops: Counts messages that are not accepted.
        publisher: Appends messages to the log.
        answers: Park what the log reports on messages while others may have the sessions.
        lookup: Finds messages in the log.
        log_room: Has clients wait that found the log full.
        retained_quota: Says whether a message may be retained.
        forwards: True if a message that may not be retained goes to subscribers all the same.
        window: Receive Maximum: QoS 1 and 2 messages of a client without an answer.
        most_levels: Number of levels that a topic name may have.
    """

    counters: GatewayCounters
    of_tenants: CountersOfTenants
    denials: Denials
    drops: Drops
    publisher: Publisher
    answers: Reports
    lookup: Lookup
    log_room: LogRoom
    retained_quota: RetainedQuota
    forwards: bool
    window: int
    most_levels: int
