"""The sessions of a gateway: their holders, those that outlive a connection, their ends.

    claim ──► granted ──► saved ──► connected ──connection lost──► released
                                                                     │
                    the owner of its shard: will, expiry, next claim ┘

A session lives in memory while its client is connected here. One that outlives its connection, or
has a will, is a record in its shard (`ingest.gateway.sending.session_log`), or a claim that says
the same, before CONNACK; the next gateway to claim it gets it. Nothing is queued for an absent
client: missed messages are read from the log when it is back (`ingest.gateway.sessions.resuming`).
Of a session that ends with its connection only the claim is written, and not even that while this
gateway owns its shard.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.sending.progress import ProgressSaver, SessionProgress
from ingest.gateway.sessions.session_marks import SessionMarks
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from ingest.session.client.checkpoint import Before, CheckpointKind, write
from ingest.session.holder import Holder
from ingest.session.holder_host import REASONS, Refusal
from ingest.session.shard.acts import CONFIRM, GRANT, LOST, REFUSE, RELEASE, REWRITE, SUBSCRIPTIONS
from ingest.session.states import IN_FORCE, SessionState
from mqlake.records.shards import ANYBODY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingest.gateway.base.client import Client
    from ingest.gateway.base.context import Context
    from ingest.gateway.log.claimant import Claimant
    from ingest.gateway.log.delivered import Delivered
    from ingest.gateway.log.lease import Lease
    from ingest.gateway.peers.peers import Peers
    from ingest.gateway.sending.sender_context import OutgoingMessage
    from ingest.gateway.sending.session_log import SessionLog
    from ingest.gateway.sessions.client_session import ClientSession
    from ingest.gateway.shards.shards import Shards
    from ingest.gateway.sharing.share_groups import ShareGroups
    from ingest.gateway.sharing.share_log import ShareLog
    from ingest.session.holder_host import Grant
    from mqlake.errors import LogError
    from mqlake.records.shards import Key
    from mqlake.records.versions import Headers

logger = logging.getLogger(__name__)

OPEN_SECONDS: Final = 15.0
"""How long a client waits for its session; longer than a lease: until a dead holder is found."""


PAUSED_BY_SESSION: Final = "session"


class Sessions:
    """The sessions of a gateway by tenant and client identifier. Implements `HolderHost`.

    Args:
        context: Shared by all parts of the gateway.
        log: Takes their records.
        share_log: Takes the records of memberships in share groups.
        shards: Those that this gateway owns.
        share_groups: Those that sessions here are members of.
        delivered: How far this gateway has come.
        peers: Know the time by the log's clock.
        lease: Lease of this gateway's name.

    Attributes:
        marks: How far all of them have come.
    """

    def __init__(
        self,
        context: Context,
        log: SessionLog,
        share_log: ShareLog,
        shards: Shards,
        share_groups: ShareGroups,
        delivered: Delivered,
        peers: Peers,
        lease: Lease,
    ) -> None:
        self._context = context
        self._share_groups = share_groups
        self._peers = peers
        self._lease = lease
        self._log = log
        self._share_log = share_log
        self._shards = shards
        self._saver = ProgressSaver(
            log,
            context.loop,
            max_repeated_messages=context.settings.max_repeated_messages,
        )
        self._holder: Holder[Claimant] = Holder(context.me, shards.count, self)
        shards.free = self
        self.marks = SessionMarks(context, log, self._saver, share_groups, delivered, shards.count)
        self._sessions: dict[Key, ClientSession] = {}
        self._leaving: dict[Key, ClientSession] = {}
        self._unstored_count = 0
        self._on_confirmed: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        """Return how many sessions this gateway knows: stored in its shards, or only connected."""
        return self._shards.session_count + self._unstored_count

    @property
    def connected_count(self) -> int:
        return len(self._sessions)

    @property
    def is_idle(self) -> bool:
        """Tell whether no client is here, on its way in or on its way out."""
        return not (self._sessions or len(self._holder) or self._leaving)

    @property
    def offline_count(self) -> int:
        """Sessions whose clients are not connected here."""
        return max(0, len(self) - len(self._sessions))

    @property
    def waiting_count(self) -> int:
        """Messages that wait for clients or for their acknowledgement; looks at every session."""
        senders = [session.sender for session in self._sessions.values()]
        return sum(sender.outbox.queued_count + sender.outbox.inflight_count for sender in senders)

    def is_connected(self, tenant: str, client_id: str) -> bool:
        """Tell whether a client of this identifier is here."""
        return (tenant, client_id) in self._sessions

    def get(self, tenant: str, client_id: str) -> ClientSession:
        """Return the session of a connected client.

        Raises:
            KeyError: It is not connected here.
        """
        return self._sessions[tenant, client_id]

    # A client comes

    def claim(self, opening: Claimant) -> None:
        """Have an opening proceed when the session is held; an older connection is closed.

        [MQTT5-3.1.2-5] [MQTT5-3.1.4-4] [MQTT311-3.1.2-4] [MQTT311-3.1.4-3]
        """
        key, holder = opening.key, self._holder
        session = self._sessions.get(key)
        principal = self._principal_of(opening.connection)
        whose = None if session is None else session.principal
        if whose is not None and principal not in {whose, ANYBODY}:
            self.refuse(key, opening, Refusal.ANOTHERS, REASONS[Refusal.ANOTHERS])
            return
        earlier = holder.waits(key, principal)
        hands_on = (
            session is not None
            and not session.is_written
            and not opening.is_kept
            and earlier is None
        )
        if session is not None and session.connection is not None:
            session.hands_on = hands_on
            # [MQTT5-3.1.4-3] [MQTT311-3.1.4-2]
            session.connection.close(
                DisconnectReasonCode.SESSION_TAKEN_OVER, log_reason="taken over by its client id"
            )
        if hands_on and holder.is_held(key):
            self.begin(key, opening, None)
            return
        if not opening.is_kept and not holder.is_held(key) and earlier is None:
            shard = self._shards.owned_shard(key)
            if (
                shard is not None
                and self._lease.is_certain()
                and self._lease.is_sure()
                and shard.take(key, holder.next_number, principal)
            ):
                holder.open_free(key, opening)
                return
        opening.connection.pause_reading(PAUSED_BY_SESSION)
        now, clean_start = self._context.loop.time(), opening.connect.clean_start
        # One that was cut off, and repeats waiting claims, would tell of a client twice.
        said = opening.claimed_session() if self._lease.holds() else None
        holder.open(key, opening, now, clean_start=clean_start, principal=principal, session=said)

    def connection_gone(self, connection: Client) -> None:
        """Forget a connection that did not wait for its session."""
        key = (connection.tenant, connection.client_id)
        principal = self._principal_of(connection)
        opening = self._holder.waits(key, principal)
        if opening is not None and opening.connection is connection:
            self._holder.give_up(key, principal)

    def _principal_of(self, connection: Client) -> str | None:
        """Return whose session a client may have, as a claim says it."""
        follows_client_id = self._context.settings.sessions_follow == "client_id"
        return ANYBODY if follows_client_id else connection.principal

    def told(self, action: str, value: dict[str, Any]) -> None:
        """Take a message of a shard's owner about the sessions of this gateway.

        Raises:
            InvalidRecord: A member is missing.
        """
        BETWEEN_GATEWAYS[action](self._holder, value)

    # Decisions of the holder: implements `ingest.session.holder_host.HolderHost`

    def append(
        self,
        shard: int,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        on_appended: Callable[[int, LogError | None], None],
    ) -> None:
        if value is not None:
            self._shards.hurry()
        self._log.append_claim(shard, key, value, headers, on_appended)

    def begin(self, key: Key, opening: Claimant, grant: Grant | None) -> None:
        if opening.connection.is_closing:
            self._holder.release(key, lambda epoch: self._holder.end_claim_of(key, epoch))
        else:
            opening.proceed(grant)

    def refuse(self, key: Key, opening: Claimant, refusal: Refusal, reason: str) -> None:
        if refusal is Refusal.UNCERTAIN:
            opening.cut(reason)
        else:
            opening.refuse(_CODES[refusal], reason)

    def let_go(self, key: Key) -> None:
        session = self._sessions.get(key)
        if session is not None and session.connection is not None:
            session.connection.close(
                DisconnectReasonCode.SESSION_TAKEN_OVER, log_reason="taken over at another gateway"
            )

    def untake(self, key: Key) -> None:
        self._shards.untake(key)

    def claimed(self, key: Key, number: int, epoch: int) -> None:
        """Note that the claim of a session was read that was begun without: see `FreeSessions`."""
        self._holder.claimed(key, number, epoch)

    def rewrite(self, key: Key) -> None:
        session = self._sessions.get(key)
        if session is not None:
            session.save()
            if session.progress is not None and not session.is_coming_back:
                session.progress.touch()

    def rewrite_subscription(self, key: Key, topic_filter: str) -> None:
        session = self._sessions.get(key) or self._leaving.get(key)
        if session is not None:
            session.save_again(topic_filter)

    def abandon(self, key: Key) -> None:
        session = self._sessions.get(key) or self._leaving.pop(key, None)
        if session is None:
            return
        # Others have settled it: records of it from now on do not count.
        session.sender.outbox.take_shared(is_ended=True)
        self._close_progress(session)
        self._drop_subscriptions(session, SessionState.ENDED)
        self._log.let_go(key)
        self._share_log.let_go(key)
        if session.connection is not None:
            session.connection.close(
                DisconnectReasonCode.SESSION_TAKEN_OVER,
                log_reason="another gateway has taken the session: heartbeats did not arrive",
            )

    def confirmed(self) -> None:
        self._on_confirmed()

    def deliveries_gone(self, begins: Sequence[int]) -> None:
        """Have all sessions that are given deliveries read those messages from the log.

        Args:
            begins: Per partition of `mqlake.inbound` the first offset that the log has.
        """
        for session in (*self._sessions.values(), *self._leaving.values()):
            if session.state in IN_FORCE:
                session.miss(begins)

    # Called by openings

    def add(self, session: ClientSession) -> None:
        """Take a session that this gateway holds, before anything is written of it."""
        key = session.key
        session.epoch = self._holder.epoch(key)
        if session.is_stored:
            assert session.epoch is not None
            session.progress = SessionProgress(
                self._saver,
                key,
                session.epoch,
                session.next_progress,
                session.sender.send_waiting,
            )
            self.marks.opened(key)
        else:
            self._unstored_count += 1
        self._sessions[key] = session

    def saved(self, session: ClientSession) -> None:
        """Note that the log has a record of a session: its claim is of no use any more."""
        assert session.epoch is not None
        self._holder.saved(session.key, session.epoch)

    # A client goes

    def connection_lost(self, session: ClientSession, reason: str) -> None:
        """Let go of a session's connection: its will and its expiry begin to count."""
        del self._sessions[session.key]
        session.connection = None
        session.end_reason = reason
        session.sender.detach()  # exchanges in flight are kept, of share groups too [MQTT5-4.8.2-4]
        self._context.events.add(
            "client.disconnected", session.tenant, session.client_id, reason=reason
        )
        if session.progress is None:
            self._unstored_count -= 1
        if session.is_ended:
            return
        if not session.is_stored:  # [MQTT5-3.1.2-23]
            self._end_with_connection(session)
        elif session.state is SessionState.LIVE:
            session.become(SessionState.LEAVING)
            self._leaving[session.key] = session
            self.release_if_stored(session.key)
        else:  # its client was not heard yet
            self._store(session)

    def _end_with_connection(self, session: ClientSession) -> None:
        """End a session; its will, if it has one, is published by the owner of its shard."""
        shared_filters = session.shared_filters() if session.is_written else []
        self._drop_subscriptions(session, SessionState.ENDED)
        # Others of the share groups get its unfinished messages (5.0: 4.8.2).
        left = session.sender.outbox.take_shared(is_ended=True)
        self._share_groups.pass_on(session.tenant, left)
        self._close_progress(session)
        key, record = session.key, None
        if session.is_written:
            record = session.record(disconnected_at_ms=self._context.clock.now_ms())

        def write_last(epoch: int) -> None:
            writers: dict[CheckpointKind, Callable[[], object]] = {
                CheckpointKind.MEMBER: partial(
                    self._share_log.forget_member, key, shared_filters, epoch
                )
            }
            if record is not None and record.will is None:
                if session.has_progress:
                    writers[CheckpointKind.PROGRESS] = partial(
                        self._log.forget_progress, key, epoch
                    )
                writers[CheckpointKind.SESSION] = partial(self._log.forget_session, key, epoch)
            elif record is not None:
                writers[CheckpointKind.SESSION] = partial(self._log.save_session, record, epoch)
            write(Before.END, writers)
            if record is None:
                self._holder.end_claim_of(key, epoch)

        if not session.hands_on:
            self._holder.release(key, write_last)

    def release_if_stored(self, key: Key) -> None:
        """Let others have a session once the log has answered for its QoS 2 messages."""
        session = self._leaving.get(key)
        if session is None or session.incoming.is_storing or session.sender.outbox.giving:
            return
        del self._leaving[key]
        self._store(session)

    def _store(self, session: ClientSession) -> None:
        key = session.key
        shared: list[OutgoingMessage] = []
        progress = None
        if not session.is_coming_back:
            shared = session.sender.outbox.take_shared(is_ended=False)
            if session.has_progress or session.subscriptions:
                progress = session.next_progress()
        self._close_progress(session)
        record = session.record(disconnected_at_ms=self._context.clock.now_ms())
        changes = session.take_changes()
        self._drop_subscriptions(session, SessionState.STORED)
        self._share_groups.pass_on(session.tenant, shared)
        self._share_log.let_go(key)

        def write_last(epoch: int) -> None:
            writers: dict[CheckpointKind, Callable[[], object]] = {
                CheckpointKind.SESSION: partial(self._log.save_session, record, epoch)
            }
            if progress is not None:
                writers[CheckpointKind.PROGRESS] = partial(
                    self._log.save_progress, key, progress, epoch
                )
            if changes:
                save = partial(session.save_subscriptions, changes, epoch=epoch)
                writers[CheckpointKind.SUBSCRIPTION] = save
            write(Before.RELEASE, writers)

        self._holder.release(key, write_last)

    def _close_progress(self, session: ClientSession) -> None:
        if session.progress is not None:
            session.progress.close()
            self.marks.closed(session.key)

    def _drop_subscriptions(self, session: ClientSession, state: SessionState) -> None:
        self.marks.forget(session)
        session.end(state)

    # Time passes

    def tick(self) -> None:
        """Repeat unanswered claims; turn away clients that have waited too long."""
        self._holder.tick(self._context.loop.time(), OPEN_SECONDS)

    def end_claims(self) -> None:
        """End the claims that are of no use any more; `tick` does that, too."""
        self._holder.end_claims()

    def confirm(self, on_confirmed: Callable[[], None]) -> None:
        """Find out which sessions this gateway still holds; tell when that is known."""
        self._on_confirmed = on_confirmed
        self._holder.confirm(self._context.loop.time())

    def end_stored(self, key: Key) -> None:
        """End the session of an absent client, if it is this gateway that owns its shard."""
        shard = self._shards.owned_shard(key)
        if shard is not None:
            shard.end_stored(key, self._peers.log_now_ms())


_CODES: Final = {
    Refusal.TAKEN_OVER: ConnackReasonCode.SERVER_BUSY,
    Refusal.ANOTHERS: ConnackReasonCode.NOT_AUTHORIZED,
    Refusal.NOT_GIVEN: ConnackReasonCode.SERVER_UNAVAILABLE,
}

BETWEEN_GATEWAYS: Final[dict[str, Callable[[Holder[Claimant], dict[str, Any]], None]]] = {
    SUBSCRIPTIONS: Holder.subscriptions_told,
    GRANT: Holder.granted,
    REFUSE: Holder.refused,
    RELEASE: Holder.asked_to_let_go,
    REWRITE: Holder.asked_to_rewrite,
    LOST: Holder.lost,
    CONFIRM: Holder.answered,
}
"""Messages of a shard's owner to gateways that hold sessions, or have claimed them."""
