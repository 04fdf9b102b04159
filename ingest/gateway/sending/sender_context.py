"""The context of a gateway's senders, and the form in which each has its messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ingest.gateway.sending.group_step import SavedGroups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.gateway.base.counters import GatewayCounters
    from ingest.gateway.base.drops import Drops
    from ingest.gateway.base.outbound import OutboundMessage
    from ingest.gateway.base.tenant_counters import CountersOfTenants
    from ingest.gateway.sending.delivery_events import DeliveryEvents
    from ingest.gateway.sending.retained_scans import RetainedSources
    from ingest.gateway.settings.gateway import GatewaySettings
    from mqlake.clock import Clock


class OutgoingMessage(NamedTuple):
    """A message to one client as it waits or is in flight."""

    message: OutboundMessage
    qos: int
    retain: bool
    identifiers: tuple[int, ...]
    shared_filter: str = ""
    """The shared subscription that the client got it for."""

    @property
    def position(self) -> tuple[int, int]:
        """Partition and offset in the log."""
        return (self.message.partition, self.message.offset)


class Groups(SavedGroups, Protocol):
    """Implemented by `ingest.gateway.sharing.share_groups.ShareGroups`."""

    def member_moved(self, sender: Any) -> None:
        """Give a member messages that wait for it in its groups, if it has room now."""
        ...

    def pass_on(self, tenant: str, left: Iterable[OutgoingMessage]) -> None:
        """Give others of the group messages that a member has left."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderContext:
    """Parts of a gateway that all its senders use.

    Attributes:
        settings: Settings of the gateway.
        clock: Clock by which messages expire.
        counters: Counters of the gateway; senders count messages there.
        of_tenants: Counters of each tenant, for the messages of its clients.
        drops: Counts messages that clients do not get, and reports them.
        told: Writes events of deliveries for the tenants that have a rule for them.
        groups: Give members of share groups their messages.
        retained: Sources of retained messages.
    """

    settings: GatewaySettings
    clock: Clock
    counters: GatewayCounters
    of_tenants: CountersOfTenants
    drops: Drops
    told: DeliveryEvents
    groups: Groups
    retained: RetainedSources
