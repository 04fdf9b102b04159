"""Share groups as the log has them: written by each gateway, followed by all.

`mqlake.share_groups` has one partition, so that all gateways see the same order. Beside the parts
of groups it has what sessions that outlive their connections share: their shared subscriptions, and
which messages of a group they have in flight. Those are a client's own, whatever becomes of the
gateway that gave them to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ingest.gateway.keyed_writer import KeyedWriter
from ingest.session.share_parts import PART_KEY_PREFIX, PartRecord, encode_part, part_key
from mqlake.errors import InvalidRecord, LogError, NewerRecord
from mqlake.log.contract import BEGINNING, LogRecord, LogWriter
from mqlake.record_versions import check_version
from mqlake.records import HEADER_BY, RECORD_VERSION, SHARE_GROUPS
from mqlake.session_records import MarksRecord, decode_marks, encode_marks, marks_key
from mqlake.shard_records import Key, Run, stamp_headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.session.share_parts import GroupKey
    from mqlake.log.contract import LogReader

logger = logging.getLogger(__name__)

MEMBER_KEY_PREFIX: Final = b"m/"
MARKS_KEY_PREFIX: Final = b"g/"
MARKER_KEY_PREFIX: Final = b"\0"

OPEN_SECONDS: Final = 60.0

Position = tuple[int, int]
"""Partition and offset in `mqlake.inbound`."""


@dataclass(frozen=True, slots=True)
class Member:
    """What a session that outlives its connection shares."""

    shared_filters: tuple[str, ...]
    in_flight: tuple[tuple[str, int, int], ...]
    """Shared subscription, partition and offset of each message that the client has not ended."""


class PartsListener(Protocol):
    """Whoever deals with share groups."""

    def part_written(self, key: bytes, value: bytes | None, by: str) -> None:
        """A record of a part has come, whoever wrote it, in the order of the log."""
        ...


class Members:
    """What sessions share, by group."""

    def __init__(self) -> None:
        self._members: dict[Key, Member] = {}
        self._by_group: dict[tuple[str, str], dict[str, None]] = {}

    def put(self, key: Key, member: Member | None) -> None:
        tenant, client_id = key
        before = self._members.pop(key, None)
        for shared_filter in () if before is None else before.shared_filters:
            clients = self._by_group[tenant, shared_filter]
            del clients[client_id]
            if not clients:
                del self._by_group[tenant, shared_filter]
        if member is not None:
            self._members[key] = member
            for shared_filter in member.shared_filters:
                self._by_group.setdefault((tenant, shared_filter), {})[client_id] = None

    def __contains__(self, key: Key) -> bool:
        return key in self._members

    def has(self, group: GroupKey) -> bool:
        """Tell whether a session that outlives its connection has a shared subscription."""
        return (group.tenant, group.topic_filter) in self._by_group

    def in_flight(self, group: GroupKey) -> set[Position]:
        """Return where the messages of a group are that sessions have in flight."""
        return {
            (partition, offset)
            for client_id in self._by_group.get((group.tenant, group.topic_filter), ())
            for shared_filter, partition, offset in self._members[group.tenant, client_id].in_flight
            if shared_filter == group.topic_filter
        }


class ShareLog:
    """Writes what this gateway has of share groups and follows that of all.

    Args:
        writer: Appends to the log.
        reader: Not started yet.
        me: This run of this gateway.
    """

    def __init__(self, writer: LogWriter, reader: LogReader, me: Run) -> None:
        self.members = Members()
        self._writer = writer
        self._reader = reader
        self._me = me
        self._headers = stamp_headers(me.incarnation)
        self._parts: PartsListener
        self._marks: dict[str, bytes] = {}
        self._written: dict[Key, Member] = {}
        self._records = KeyedWriter(writer, SHARE_GROUPS)
        self._catching_up: list[asyncio.Future[None]] = []

    async def open(self, parts: PartsListener) -> None:
        """Read the log up to what is in it now.

        Raises:
            LogError: It cannot be read in time.
        """
        self._parts = parts
        await self._reader.start(SHARE_GROUPS, {0: BEGINNING}, self._receive, self._report)
        await self.catch_up()

    async def catch_up(self) -> None:
        """Wait until all that is in the log now has been taken.

        Raises:
            LogError: It cannot be read in time.
        """
        caught_up = asyncio.get_running_loop().create_future()
        self._catching_up.append(caught_up)
        marker = MARKER_KEY_PREFIX + self._me.gateway.encode()
        await self._writer.append_durably(SHARE_GROUPS, marker, b"", self._headers, partition=0)
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await caught_up
        except TimeoutError:
            raise LogError(
                f"{SHARE_GROUPS} was not read within {OPEN_SECONDS:.0f} s", definite=True
            ) from None

    async def close(self) -> None:
        await self._reader.close()

    def stop_writing(self) -> None:
        """Write nothing more: what this process knows is not to be trusted."""
        self._records.close()

    @property
    def is_saved(self) -> bool:
        """Whether the log has confirmed all that was written."""
        return self._records.is_saved

    def marks(self, gateway: str) -> MarksRecord | None:
        """Return how far the parts of a gateway have come."""
        value = self._marks.get(gateway)
        return None if value is None else decode_marks(value)

    def save_part(
        self, record: PartRecord, on_saved: Callable[[LogError | None], None] | None = None
    ) -> None:
        """Write a part of a share group; without a callback until the log has it."""
        value = encode_part(record)
        if on_saved is None:
            self._append_until_taken(part_key(record), value)
        else:
            self._records.append(part_key(record), value, self._headers, 0, on_saved)

    def forget_part(self, key: bytes) -> None:
        """Write that a part is no more."""
        self._append_until_taken(key, None)

    def save_member(self, key: Key, member: Member | None) -> None:
        """Write what a session shares, unless the log has it so; None: nothing any more.

        What is written of a part after that can rely on it.
        """
        if member is not None and not member.shared_filters and not member.in_flight:
            member = None
        if self._written.get(key) == member:
            return
        if member is None:
            del self._written[key]
        else:
            self._written[key] = member
        self.members.put(key, member)
        self._append_until_taken(_member_key(key), None if member is None else _encode(member))

    def let_go(self, key: Key) -> None:
        """Note that another gateway may write what a session shares."""
        self._written.pop(key, None)

    def forget_member(self, key: Key) -> None:
        """Write that a session has ended, if it shared anything."""
        self._written.pop(key, None)
        if key in self.members:
            self.members.put(key, None)
            self._append_until_taken(_member_key(key), None)

    def save_marks(self, marks: list[int], next_delivery: int) -> None:
        """Write how far all parts of this gateway have come."""
        value = encode_marks(MarksRecord(self._me.incarnation, marks, next_delivery))
        with contextlib.suppress(LogError):  # the next ones come soon
            key = marks_key(self._me.gateway)
            self._records.append(key, value, self._headers, 0, None)

    def _append_until_taken(self, key: bytes, value: bytes | None) -> None:
        self._records.append_until_taken(key, value, self._headers, 0)

    def _receive(self, records: list[LogRecord]) -> None:
        for record in records:
            try:
                self._apply(record)
            except NewerRecord:
                raise
            except InvalidRecord as error:
                logger.warning("share record ignored", extra={"fields": {"reason": str(error)}})

    def _apply(self, record: LogRecord) -> None:
        key = record.key or b""
        by = dict(record.headers).get(HEADER_BY, b"").decode(errors="replace")
        if key.startswith(PART_KEY_PREFIX):
            self._parts.part_written(key, record.value, by)
        elif key.startswith(MEMBER_KEY_PREFIX):
            tenant, _, client_id = _text(key[len(MEMBER_KEY_PREFIX) :]).partition("/")
            if by != self._me.incarnation:  # ours was taken when it was written
                member = None if record.value is None else _decode(record.value)
                self.members.put((tenant, client_id), member)
        elif key.startswith(MARKS_KEY_PREFIX):
            gateway = _text(key[len(MARKS_KEY_PREFIX) :])
            if record.value is None:
                self._marks.pop(gateway, None)
            else:
                decode_marks(record.value)
                self._marks[gateway] = record.value
        elif by == self._me.incarnation:
            waiting, self._catching_up = self._catching_up, []
            for caught_up in waiting:
                if not caught_up.done():
                    caught_up.set_result(None)

    def _report(self, error: LogError) -> None:
        logger.warning("share groups cannot be read", extra={"fields": {"reason": str(error)}})


def _member_key(key: Key) -> bytes:
    return MEMBER_KEY_PREFIX + f"{key[0]}/{key[1]}".encode()


def _encode(member: Member) -> bytes:
    members = {
        "v": RECORD_VERSION,
        "filters": member.shared_filters,
        "in_flight": member.in_flight,
    }
    return json.dumps(members, separators=(",", ":")).encode()


def _decode(value: bytes) -> Member:
    try:
        found: Any = json.loads(value)
        check_version(found["v"], "share member")
        return Member(
            tuple(str(one) for one in found["filters"]),
            tuple((str(one), int(p), int(offset)) for one, p, offset in found["in_flight"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise InvalidRecord(f"share member cannot be read: {exc}") from exc


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as exc:
        raise InvalidRecord(f"key {key!r} is not UTF-8") from exc
