"""The context of a gateway's senders, and the form in which each has its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ingest.gateway.sending.group_step import SavedGroups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.gateway.base.context import Context
    from ingest.gateway.base.outbound import OutboundMessage
    from ingest.gateway.sending.delivery_events import DeliveryEvents
    from ingest.gateway.sending.retained_scans import RetainedSources


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


class SenderContext:
    """Parts of a gateway that all its senders use.

    Args:
        context: Of the gateway.
        told: Whether a rule wants events of deliveries.
        groups: Give members of share groups their messages.
        retained: Where retained messages come from.
    """

    __slots__ = (
        *("clock", "counters", "drops", "groups", "of_tenants", "retained", "settings", "told"),
    )

    def __init__(
        self, context: Context, told: DeliveryEvents, groups: Groups, retained: RetainedSources
    ) -> None:
        self.settings = context.settings
        self.clock = context.clock
        self.counters = context.counters
        self.of_tenants = context.of_tenants
        self.drops = context.drops
        self.told = told
        self.groups = groups
        self.retained = retained
