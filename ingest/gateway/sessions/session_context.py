"""The context of a gateway's sessions, and a session as the log has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingest.gateway.limits.shared_limits import SharedLimits
    from ingest.gateway.log.delivered import Delivered
    from ingest.gateway.peers.peers import Peers
    from ingest.gateway.routing.publishing import Publisher
    from ingest.gateway.sending.sender_context import SenderContext
    from ingest.gateway.sending.sending import Sender
    from ingest.gateway.sending.session_log import SessionLog
    from ingest.gateway.sessions.histories import Histories
    from ingest.gateway.sessions.slow_clients import SlowClients
    from ingest.gateway.sharing.share_groups import ShareGroups
    from ingest.gateway.sharing.share_log import ShareLog
    from ingest.session.subscriptions import Subscriptions
    from mqlake.clock import Clock
    from mqlake.records.progress import ProgressRecord
    from mqlake.records.sessions import SessionRecord, StoredSubscription
    from mqlake.records.shards import Key, Run


class StoredSession(NamedTuple):
    """A session whose client was away, from the log."""

    session: SessionRecord
    progress: ProgressRecord | None
    """None when there is none yet."""
    more: Sequence[StoredSubscription] = ()
    """Its subscriptions that have records of their own."""


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Parts of a gateway that all its sessions use.

    Attributes:
        me: This run of the gateway.
        origin: `<site>/<gateway>`.
        clock: For times in records.
        peers: Knows which version of records is in force.
        senders: Context of their senders.
        subscriptions: Those in force.
        share_groups: The share groups that sessions here are members of.
        histories: Reads for sessions that have asked for history.
        slow_clients: Reads for those that have fallen behind.
        publisher: Knows messages that the log has confirmed.
        delivered: Position of the gateway's deliveries.
        session_log: Takes the records of sessions.
        share_log: Takes the records of memberships in share groups.
        shared_limits: Count subscriptions.
        release: Called when the log may have answered for the last message of a session whose
            client has gone.
    """

    me: Run
    origin: str
    clock: Clock
    peers: Peers
    senders: SenderContext
    subscriptions: Subscriptions[Sender]
    share_groups: ShareGroups
    histories: Histories
    slow_clients: SlowClients
    publisher: Publisher
    delivered: Delivered
    session_log: SessionLog
    share_log: ShareLog
    shared_limits: SharedLimits
    release: Callable[[Key], None]
