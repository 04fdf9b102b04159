"""Acts of the owner of a shard, each a coroutine: read from top to bottom, and durable so.

A will, as an example: that it is about to be published is in the log before it is, and that it was
published only after it was. An owner that finds it begun looks whether it is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from ingest.session.shard.effects import (
    AppendRecords,
    EndOffsets,
    Find,
    NextOffsets,
    PassOn,
    PublishWills,
    Search,
    SessionEnded,
    SettledRun,
    ShardRecord,
    Tell,
)
from mqlake.errors import InvalidRecord
from mqlake.records import compact_json
from mqlake.records.progress import ProgressRecord, decode_progress, encode_progress, resume_cursor
from mqlake.records.sessions import (
    SessionRecord,
    encode_session,
    exchange_name,
    progress_key,
    session_key,
    to_session,
    will_exchange,
)
from mqlake.records.shards import NO_EPOCH, claim_key, stamp_headers
from mqlake.records.versions import RECORD_VERSION
from mqlake.topics.names import SHARE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from mqlake.records.progress import MarksRecord
    from mqlake.records.shards import Claim, Key, Run

# Actions of control records between gateways.
GRANT: Final = "grant"
REFUSE: Final = "refuse"
CONFIRM: Final = "confirm"
RELEASE: Final = "release"
REWRITE: Final = "rewrite"
LOST: Final = "lost"
SUBSCRIPTIONS: Final = "subscriptions"

KEYS_AT_ONCE: Final = 500
"""Sessions in one record, or settled together."""


class StoredEntry(Protocol):
    """Implemented by `ingest.session.shard.entries.ShardEntry`, which describes it."""

    epoch: int
    granted: Claim | None
    claim: Claim | None
    session: bytes | None
    session_epoch: int


class StoredEntries(Protocol):
    """Implemented by `ingest.session.shard.entries.ShardStore`."""

    def get(self, key: Key) -> StoredEntry | None: ...
    def progress(self, key: Key) -> bytes | None: ...
    def held_by(self, run: Run, limit: int | None = None) -> list[Key]: ...


class StoredSubscriptions(Protocol):
    """Implemented by `ingest.session.shard.stored_subscriptions.SubscriptionsOfShard`."""

    def pages(self, key: Key, session_id: str) -> Iterator[list[bytes]]: ...
    def shared_filters(self, key: Key, session_id: str) -> list[str]: ...


class OwnedShard(Protocol):
    """Implemented by `ingest.session.ownership.Shard`, which describes it and begins the acts."""

    me: Run
    owner_epoch: int

    @property
    def store(self) -> StoredEntries: ...
    @property
    def subscriptions(self) -> StoredSubscriptions: ...
    def session(self, key: Key) -> SessionRecord | None: ...
    def marks_of(self, run: Run) -> MarksRecord | None: ...
    def forget(self, key: Key) -> None: ...


async def ask(
    gateway: str, action: str, key: Key, epoch: int, topic_filter: str | None = None
) -> None:
    """Ask the holder of a session to let go of it, or to write it, or a subscription, again.

    Or tell a gateway that it is not the holder any more.
    """
    members: dict[str, Any] = {"tenant": key[0], "client_id": key[1], "epoch": epoch}
    if topic_filter is not None:
        members["filter"] = topic_filter
    await Tell(gateway, action, _encode(**members))


async def refuse(key: Key, claim: Claim, *, is_anothers: bool = False) -> None:
    """Tell a claimant that the session has a later claim, or is another principal's."""
    members: dict[str, Any] = {"is_anothers": True} if is_anothers else {}
    value = _encode(
        tenant=key[0],
        client_id=key[1],
        incarnation=claim.run.incarnation,
        number=claim.number,
        **members,
    )
    await Tell(claim.run.gateway, REFUSE, value)


async def end_claim(shard: OwnedShard, key: Key, claim: Claim) -> None:
    """End a claim that was read before it was known that the session is another's."""
    stamp = stamp_headers(shard.me.incarnation, claim.epoch, shard.owner_epoch)
    await AppendRecords([ShardRecord(claim_key(*key), None, stamp)])
    await refuse(key, claim, is_anothers=True)


async def confirm(
    shard: int, run: Run, number: int, keys: Sequence[Key], earlier: tuple[int, int]
) -> None:
    """Tell a gateway that was cut off which sessions of the shard it still holds.

    Args:
        shard: Is this gateway's.
        run: Run of the gateway that asks.
        number: Number of its question.
        keys: Keys of sessions that it holds.
        earlier: How many sessions and memberships of its earlier runs are not settled.
    """
    for at in range(0, max(1, len(keys)), KEYS_AT_ONCE):
        value = _encode(
            incarnation=run.incarnation,
            number=number,
            shard=shard,
            keys=keys[at : at + KEYS_AT_ONCE],
            earlier=earlier,
            is_last=at + KEYS_AT_ONCE >= len(keys),
        )
        await Tell(run.gateway, CONFIRM, value)


async def hand_over(shard: OwnedShard, key: Key, claim: Claim) -> None:
    """Give a claimant the stored session, or none.

    Subscriptions with records of their own come first, page by page; the session says how many
    there are, so a claimant that has not got all of them claims again.

    Before that a stored session ends if the client wants a clean one, or its time is over
    [MQTT5-3.1.2-4] [MQTT311-3.1.2-6], and a will is published whose time had come.
    """
    entry = shard.store.get(key)
    if entry is None or entry.granted is None or entry.granted.epoch != claim.epoch:
        return  # it has the session by now, or has let go of it
    session = await _session_for(shard, key, claim)
    entry = shard.store.get(key)
    value = b"null"
    progress = None
    if session is not None and entry is not None and entry.session is not None:
        value, progress = entry.session, shard.store.progress(key)
    members = _encode(
        tenant=key[0],
        client_id=key[1],
        incarnation=claim.run.incarnation,
        number=claim.number,
        epoch=claim.epoch,
    )
    # All of them are JSON already.
    count = 0
    if session is not None:
        for page in shard.subscriptions.pages(key, session.session_id):
            told = b'%b,"subscriptions":[%b]}' % (members[:-1], b",".join(page))
            await Tell(claim.run.gateway, SUBSCRIPTIONS, told)
            count += len(page)
    told = b'%b,"session":%b,"progress":%b,"subscriptions":%d}' % (
        members[:-1],
        value,
        progress or b"null",
        count,
    )
    await Tell(claim.run.gateway, GRANT, told)


async def _session_for(shard: OwnedShard, key: Key, claim: Claim) -> SessionRecord | None:
    """Return the session that a claimant gets; one that it does not get ends."""
    session = shard.session(key)
    if session is None:
        return None
    now_ms = _given_at_ms(session, claim)
    is_expired = _is_expired(session, now_ms)
    if claim.clean_start or is_expired:
        await end(shard, [key], now_ms, is_expired=is_expired)
        return None
    if _is_will_due(session, now_ms):
        await _publish_due_wills(shard, [key])
    return session


def _given_at_ms(session: SessionRecord, claim: Claim) -> int:
    """Return the time by which a session's expiry and will are judged for a claimant.

    A claim that waited stands before the end of the connection that it has ended.
    """
    return max(claim.at_ms, session.disconnected_at_ms or 0)


def _is_expired(session: SessionRecord, now_ms: int) -> bool:
    expires_at_ms = session.expires_at_ms()
    return expires_at_ms is not None and expires_at_ms <= now_ms


async def settle(shard: OwnedShard, run: Run, now_ms: int, late: Collection[Key]) -> None:
    """Write a dead gateway's last records for it: the state of its sessions, and their release.

    Its QoS 2 messages that were on their way into the log are looked for there; the marks that it
    wrote move the cursors of those that had nothing on their way. Messages that it sent last may
    be in no record: the next holder finds the present end of the log
    (`ingest.session.client.maybe_sent`).

    Args:
        shard: Is this gateway's.
        run: Is dead.
        now_ms: By the log's time.
        late: Sessions that stay as they are, for their messages may not be in the log yet.
    """
    count = 0
    ends: list[int] | None = None
    while True:
        found_keys = shard.store.held_by(run, KEYS_AT_ONCE + len(late))
        keys = [key for key in found_keys if key not in late]
        if not keys:
            break
        if ends is None:
            ends = await EndOffsets()
        held = [(key, entry) for key in keys if (entry := shard.store.get(key)) is not None]
        progress = {key: _progress(shard, key, entry) for key, entry in held}
        found = await Find(
            [
                Search(exchange_name(one.session_id, packet_id, run.incarnation), one.storing_from)
                for one in progress.values()
                if one is not None
                for packet_id in one.storing
            ]
        )
        records: list[ShardRecord] = []
        for key, entry in held:
            records += _settled(shard, run, key, entry, progress[key], found, ends, now_ms)
        await AppendRecords(records)
        count += len(keys)
    await SettledRun(run, count)


def _settled(
    shard: OwnedShard,
    run: Run,
    key: Key,
    entry: StoredEntry,
    progress: ProgressRecord | None,
    found: Collection[bytes],
    ends: list[int],
    now_ms: int,
) -> list[ShardRecord]:
    stamp = stamp_headers(shard.me.incarnation, entry.epoch, shard.owner_epoch)
    session, granted = shard.session(key), entry.granted
    end_of_claim = [] if granted is None else [ShardRecord(claim_key(*key), None, stamp)]
    if granted is not None:
        session = _as_claimed(key, session, granted)
        if session is None:  # nothing was written under its epoch: the stored session is as it was
            return end_of_claim
    if session is None:
        return _tombstones(key, stamp)
    records = []
    if progress is not None:
        if granted is not None:
            progress.settled = False  # the marks of this run say nothing of it
        else:
            progress.cursor = resume_cursor(session, progress, shard.marks_of(run))
            progress.incoming += [
                packet_id
                for packet_id in progress.storing
                if exchange_name(session.session_id, packet_id, run.incarnation) in found
            ]
            progress.storing = []
            progress.storing_from = []
        progress.sent_before = ends
        records.append(ShardRecord(progress_key(*key), encode_progress(progress), stamp))
    session.connected = False
    session.disconnected_at_ms = now_ms
    session.reason = "its gateway has died"
    if session.will is not None:
        session.will_at_ms = now_ms + session.will.will_delay_interval * 1000
    records.append(ShardRecord(session_key(*key), encode_session(session), stamp))
    return records + end_of_claim


def _as_claimed(key: Key, stored: SessionRecord | None, claim: Claim) -> SessionRecord | None:
    """Return the session of a claim that was granted, as its client may know of it.

    None: the claim does not say it, or its client has had no CONNACK. For then the stored session
        would
    have ended before, or its will been published: `hand_over` does that first.
    """
    if claim.session is None:
        return None
    try:
        session = to_session(claim.session)
    except InvalidRecord:
        return None
    if (session.tenant, session.client_id) != key:
        return None
    if stored is None:
        return session
    now_ms = _given_at_ms(stored, claim)
    if claim.clean_start or _is_expired(stored, now_ms) or _is_will_due(stored, now_ms):
        return None
    session.session_id = stored.session_id
    session.subscriptions, session.more = stored.subscriptions, stored.more
    return session


async def process_due(shard: OwnedShard, keys: Sequence[Key], now_ms: int) -> None:
    """Publish wills and end sessions whose time has come [MQTT5-4.1.0-2]."""
    ended, wills = [], []
    for key in keys:
        session = shard.session(key)
        if session is None:
            shard.forget(key)
            continue
        expires_at_ms = session.expires_at_ms()
        if expires_at_ms is not None and expires_at_ms <= now_ms:
            ended.append(key)
        elif _is_will_due(session, now_ms):
            wills.append(key)
    if wills:
        await _publish_due_wills(shard, wills)
    if ended:
        await end(shard, ended, now_ms, is_expired=True)


async def end(shard: OwnedShard, keys: Sequence[Key], now_ms: int, *, is_expired: bool) -> None:
    """End stored sessions; a will that still waits is published now [MQTT5-3.1.2-8].

    Their pending messages go with them, those of share groups too. [MQTT5-4.8.2-5]
    """
    with_will = [
        key for key in keys if (one := shard.session(key)) is not None and one.will is not None
    ]
    if with_will:
        await _publish_wills(shard, with_will)
    records: list[ShardRecord] = []
    for key in keys:
        session, progress = shard.session(key), shard.store.progress(key)
        if session is None:
            continue
        if progress is not None:
            await PassOn(key, decode_progress(progress))
        # A session that ends with its connection is over then; no expiry interval has run out.
        is_of_connection = session.session_expiry_interval == 0
        shared = [
            one.topic_filter
            for one in session.subscriptions
            if one.topic_filter.startswith(SHARE_PREFIX)
        ]
        shared += shard.subscriptions.shared_filters(key, session.session_id)
        entry = shard.store.get(key)
        epoch = NO_EPOCH if entry is None else entry.session_epoch
        await SessionEnded(key, is_expired and not is_of_connection, epoch, shared)
        stamp = _stamp(shard, key)
        records += _tombstones(key, stamp)
        if entry is None or (entry.claim is None and entry.granted is None):
            # Its last holder may have died before it had ended its claim. Left alone in the log
            # that would be a session that has a holder.
            records.append(ShardRecord(claim_key(*key), None, stamp))
    await AppendRecords(records)


async def _publish_due_wills(shard: OwnedShard, keys: Sequence[Key]) -> None:
    await _publish_wills(shard, keys)
    records = []
    for key in keys:
        session = shard.session(key)
        if session is not None:
            session.will = session.will_at_ms = session.will_from = None
            records.append(_session_record(shard, key, session))
    await AppendRecords(records)


async def _publish_wills(shard: OwnedShard, keys: Sequence[Key]) -> None:
    """Publish each will once, also one begun by another owner [MQTT5-3.1.2-8] [MQTT311-3.1.2-8]."""
    begun: list[tuple[Key, SessionRecord]] = []
    fresh: list[tuple[Key, SessionRecord]] = []
    for key in keys:
        session = shard.session(key)
        if session is not None and session.will is not None:
            (fresh if session.will_from is None else begun).append((key, session))
    starts = await NextOffsets()
    for _, session in fresh:
        session.will_from = starts
    if fresh:
        await AppendRecords([_session_record(shard, key, session) for key, session in fresh])
    found: Collection[bytes] = ()
    if begun:
        found = await Find(
            [Search(will_exchange(one), one.will_from or starts) for _, one in begun]
        )
    wills = [(one, will_exchange(one)) for _, one in (*begun, *fresh)]
    await PublishWills([will for will in wills if will[1] not in found])


def _is_will_due(session: SessionRecord, now_ms: int) -> bool:
    return (
        session.will is not None
        and session.will_at_ms is not None
        and (session.will_at_ms <= now_ms or session.will_from is not None)
    )


def _progress(shard: OwnedShard, key: Key, entry: StoredEntry) -> ProgressRecord | None:
    """Return the progress of the session that an entry holds, if it is that session's."""
    value = shard.store.progress(key)
    session = shard.session(key)
    if value is None or session is None:
        return None
    progress = decode_progress(value)
    return progress if progress.session_id == session.session_id else None


def _session_record(shard: OwnedShard, key: Key, session: SessionRecord) -> ShardRecord:
    return ShardRecord(session_key(*key), encode_session(session), _stamp(shard, key))


def _stamp(shard: OwnedShard, key: Key) -> list[tuple[str, bytes]]:
    entry = shard.store.get(key)
    assert entry is not None
    return stamp_headers(shard.me.incarnation, entry.session_epoch, shard.owner_epoch)


def _tombstones(key: Key, stamp: list[tuple[str, bytes]]) -> list[ShardRecord]:
    return [
        ShardRecord(progress_key(*key), None, stamp),
        ShardRecord(session_key(*key), None, stamp),
    ]


def _encode(**members: Any) -> bytes:
    return compact_json.encode({"v": RECORD_VERSION, **members})
