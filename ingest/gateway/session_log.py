"""Everybody's sessions as the log has them: written by their owner, followed by all gateways.

`mqlake.sessions` has one partition, so that all gateways see the same order. Who wants a session
appends a claim; the order of the claims is the order of takeovers, and whoever has seen its claim
come back has seen everything that was written before it.

A gateway takes what it writes into its store at once. Of what comes back it needs the claims only:
a session has one owner, and nobody else writes it meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ingest.session.share_parts import PART_KEY_PREFIX, PartRecord, encode_part, part_key
from mqlake.errors import LogError
from mqlake.log.contract import BEGINNING, LogFull, LogRecord, LogWriter
from mqlake.records import HEADER_BY, HEADER_VERSION, RECORD_VERSION, SESSIONS, Headers
from mqlake.session_records import (
    CLAIM,
    PROGRESS,
    SESSION,
    MarksRecord,
    ProgressRecord,
    SessionRecord,
    encode_marks,
    encode_progress,
    encode_session,
    marks_key,
    progress_key,
    session_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.store.sessions import SessionStore
    from mqlake.log.contract import LogReader

logger = logging.getLogger(__name__)

CLAIM_KEY_PREFIX: Final = f"{CLAIM}/".encode()
OPEN_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 0.1

Key = tuple[str, str]
"""Tenant and client identifier."""


class Claim(NamedTuple):
    """A gateway wants the session of a client for a connection."""

    gateway: str
    incarnation: str
    number: int
    """Counts the claims of one incarnation."""


class SessionsListener(Protocol):
    """Whoever deals with what others do; all are called in the order of the log."""

    def claimed(self, key: Key, claim: Claim) -> None:
        """A claim has come back, ours or another's."""
        ...

    def settled(self, key: Key, incarnation: str) -> None:
        """The claimant of that incarnation has the session, or has given up."""
        ...

    def changed(self, keys: list[Key]) -> None:
        """Another gateway has written these sessions, or how far they have come."""
        ...


class PartsListener(Protocol):
    """Whoever deals with share groups."""

    def part_written(self, key: bytes, value: bytes | None, by: str) -> None:
        """A record of a part has come, whoever wrote it, in the order of the log."""
        ...


class SessionLog:
    """Writes the sessions of this gateway and follows those of all.

    Args:
        writer: Appends to the log.
        reader: Not started yet.
        store: Is made from the log at the start.
        gateway: Name of this gateway.
        incarnation: Of this gateway.
    """

    def __init__(
        self,
        writer: LogWriter,
        reader: LogReader,
        store: SessionStore,
        gateway: str,
        incarnation: str,
    ) -> None:
        self.store = store
        self._writer = writer
        self._reader = reader
        self._gateway = gateway
        self._incarnation = incarnation
        self._listener: SessionsListener
        self._parts: PartsListener
        self._claims = 0
        self._last_number = 0
        # Key -> number of its last record that the log has not confirmed.
        self._pending: dict[bytes, int] = {}
        self._headers: Headers = [
            (HEADER_VERSION, b"%d" % RECORD_VERSION),
            (HEADER_BY, incarnation.encode()),
        ]
        self._is_open = False
        self._catching_up: list[asyncio.Future[None]] = []

    async def open(self, listener: SessionsListener, parts: PartsListener) -> None:
        """Read the log up to what is in it now.

        Raises:
            LogError: It cannot be read in time.
        """
        self._listener = listener
        self._parts = parts
        await self._reader.start(SESSIONS, {0: BEGINNING}, self._receive, self._report)
        await self.catch_up()
        self._is_open = True

    async def catch_up(self) -> None:
        """Wait until all that is in the log now has been taken.

        Raises:
            LogError: It cannot be read in time.
        """
        caught_up = asyncio.get_running_loop().create_future()
        self._catching_up.append(caught_up)
        # A claim on nothing: when it is back, everything before it has been.
        marker = CLAIM_KEY_PREFIX + b"\0" + self._gateway.encode()
        await self._writer.append_durably(SESSIONS, marker, b"", self._headers, partition=0)
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await caught_up
        except TimeoutError:
            raise LogError(
                f"{SESSIONS} was not read within {OPEN_SECONDS:.0f} s", definite=True
            ) from None

    async def close(self) -> None:
        await self._reader.close()

    @property
    def is_saved(self) -> bool:
        """Whether the log has confirmed all that was written."""
        return not self._pending

    def claim(self, key: Key) -> Claim:
        """Say that this gateway wants a session; `claimed` is called when everybody knows.

        Raises:
            LogError: The log does not take it.
        """
        self._claims += 1
        claim = Claim(self._gateway, self._incarnation, self._claims)
        value = json.dumps(
            {
                "v": RECORD_VERSION,
                "gateway": claim.gateway,
                "incarnation": claim.incarnation,
                "number": claim.number,
            }
        )
        self._append(_claim_key(key), value.encode(), None)
        return claim

    def settle(self, key: Key) -> None:
        """Say that a claim of ours is over."""
        self._append_until_taken(_claim_key(key), None)

    def save_session(
        self, record: SessionRecord, on_saved: Callable[[LogError | None], None] | None = None
    ) -> None:
        """Write a session; without a callback it is tried again until the log has it."""
        value = encode_session(record)
        self.store.put_session(record, value)
        key = session_key(record.tenant, record.client_id)
        if on_saved is None:
            self._append_until_taken(key, value)
        else:
            self._append(key, value, on_saved)

    def save_progress(
        self,
        key: Key,
        record: ProgressRecord,
        on_saved: Callable[[LogError | None], None] | None = None,
        *,
        keep: bool = False,
    ) -> None:
        """Write the progress of a session; `keep` when it is to be read here again."""
        value = encode_progress(record)
        if keep:
            self.store.put_progress(*key, value)
        if on_saved is None:
            self._append_until_taken(progress_key(*key), value)
        else:
            self._append(progress_key(*key), value, on_saved)

    def save_part(
        self, record: PartRecord, on_saved: Callable[[LogError | None], None] | None = None
    ) -> None:
        """Write a part of a share group."""
        value = encode_part(record)
        if on_saved is None:
            self._append_until_taken(part_key(record), value)
        else:
            self._append(part_key(record), value, on_saved)

    def forget_part(self, key: bytes) -> None:
        """Write that a part is no more."""
        self._append_until_taken(key, None)

    def save_marks(self, marks: list[int], next_delivery: int) -> None:
        """Write how far all settled sessions and all parts of this gateway have come."""
        value = encode_marks(MarksRecord(self._incarnation, marks, next_delivery))
        with contextlib.suppress(LogError):  # the next ones come soon
            self._append(marks_key(self._gateway), value, None)

    def forget(self, key: Key) -> None:
        """End a session."""
        self.store.delete_session(*key)
        self.store.delete_progress(*key)
        self._append_until_taken(session_key(*key), None)
        self._append_until_taken(progress_key(*key), None)

    def _append(
        self,
        key: bytes,
        value: bytes | None,
        on_saved: Callable[[LogError | None], None] | None,
    ) -> None:
        self._last_number = number = self._last_number + 1

        def report(_partition: int, _offset: int, error: LogError | None) -> None:
            if error is None and self._pending.get(key) == number:
                del self._pending[key]
            if on_saved is not None:
                on_saved(error)

        self._writer.append(SESSIONS, key, value, self._headers, report, partition=0)
        self._pending[key] = number

    def _append_until_taken(self, key: bytes, value: bytes | None) -> None:
        """Append what nobody waits for and what must not be missing."""
        number = self._last_number

        def report(error: LogError | None) -> None:
            # One that failed comes again only while nothing newer has been written under its key.
            if error is not None and self._pending.get(key) == number:
                loop = asyncio.get_running_loop()
                loop.call_later(RETRY_SECONDS, again)

        def again() -> None:
            if self._pending.get(key) == number:
                self._append_until_taken(key, value)

        try:
            number = self._last_number + 1
            self._append(key, value, report)
        except LogFull as error:
            self._pending[key] = number
            report(error)
        except LogError as error:
            logger.error("session not written", extra={"fields": {"reason": str(error)}})

    def _receive(self, records: list[LogRecord]) -> None:
        """Take a batch; the claims in it are told after what stands before them."""
        foreign: list[LogRecord] = []
        for record in records:
            key = record.key or b""
            by = dict(record.headers).get(HEADER_BY, b"").decode(errors="replace")
            if key.startswith(PART_KEY_PREFIX):
                self._apply(foreign)
                foreign = []
                self._parts.part_written(key, record.value, by)
                continue
            if not key.startswith(CLAIM_KEY_PREFIX):
                if by != self._incarnation:
                    foreign.append(record)
                continue
            self._apply(foreign)
            foreign = []
            self._receive_claim(key, record.value, by)
        self._apply(foreign)

    def _apply(self, records: list[LogRecord]) -> None:
        if not records:
            return
        for error in self.store.apply(records):
            logger.warning("session record ignored", extra={"fields": {"reason": str(error)}})
        if self._is_open:
            keys: dict[Key, None] = {}
            for record in records:
                kind, _, rest = (record.key or b"").decode(errors="replace").partition("/")
                if kind in {SESSION, PROGRESS}:
                    tenant, _, client_id = rest.partition("/")
                    keys[tenant, client_id] = None
            if keys:
                self._listener.changed(list(keys))

    def _receive_claim(self, key: bytes, value: bytes | None, by: str) -> None:
        tenant, _, client_id = key[len(CLAIM_KEY_PREFIX) :].decode(errors="replace").partition("/")
        if tenant.startswith("\0"):
            if by == self._incarnation:
                waiting, self._catching_up = self._catching_up, []
                for caught_up in waiting:
                    if not caught_up.done():
                        caught_up.set_result(None)
            return
        if not self._is_open:
            return  # of the past
        if value is None:
            self._listener.settled((tenant, client_id), by)
            return
        try:
            found = json.loads(value)
            claim = Claim(found["gateway"], found["incarnation"], found["number"])
        except (ValueError, KeyError, TypeError) as exc:
            logger.warning("claim ignored", extra={"fields": {"reason": str(exc)}})
            return
        self._listener.claimed((tenant, client_id), claim)

    def _report(self, error: LogError) -> None:
        logger.warning("sessions cannot be read", extra={"fields": {"reason": str(error)}})


def _claim_key(key: Key) -> bytes:
    return CLAIM_KEY_PREFIX + f"{key[0]}/{key[1]}".encode()
