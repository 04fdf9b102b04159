"""Bans of clients: by a file, by records of `mqlake.gateways`, or for a time for offences."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ingest.gateway.limits.offences import REASONS, Offences
from mqlake.bans import BanList, ban_id_of, decode_ban, read_bans
from mqlake.errors import InvalidRecord

if TYPE_CHECKING:
    from pathlib import Path

    from ingest.gateway.base.connections import Connections
    from ingest.gateway.base.context import Context
    from mqlake.bans import Ban
    from mqlake.log.contract import LogWriter
    from mqlake.records.messages import LogRecord

logger = logging.getLogger(__name__)


class Bans:
    """Tells which clients are banned.

    Args:
        bans_file: Bans beside those of the log.
        context: Shared by all parts; its limits say which clients get one for a time.
        connections: Connections of clients that may be banned.
        writer: Tells other gateways of clients that are banned for offences.

    Attributes:
        offences: Counts them.

    Raises:
        BansError: The file cannot be used.
    """

    def __init__(
        self,
        bans_file: Path | None,
        context: Context,
        connections: Connections,
        writer: LogWriter,
    ) -> None:
        self.offences = Offences(context, writer)
        self._path = bans_file
        self._of_file = () if bans_file is None else read_bans(bans_file)
        self._of_log: dict[str, Ban] = {}
        self._list: BanList | None = None  # made again when it is asked
        self._clock = context.clock
        self._loop = context.loop
        self._connections = connections
        self._is_cutting = False

    def of(
        self, client_id: str, username: str | None, address: str, token_id: str | None = None
    ) -> str:
        """Return why a client that may be connected is banned, "" when not.

        Args:
            client_id: As it stands in CONNECT, or was given.
            username: As which it has logged in, or wants to.
            address: Without its port, "" where there is none.
            token_id: Identifier of the token of its login.
        """
        if self._list is None:
            self._list = BanList((*self._of_file, *self._of_log.values()))
        now_ms = self._clock.now_ms()
        ban = self._list.find(client_id, username, address, now_ms, token_id)
        return "" if ban is None else _said(ban.reason)

    def of_newcomer(self, client_id: str, username: str | None, address: str) -> str:
        """Return why a client that is not let in yet is banned, "" when not."""
        if self.offences.is_guesser(address):
            return _said(REASONS["guesses"])
        return self.of(client_id, username, address)

    def note_connected(self, tenant: str, client_id: str, username: str | None) -> str:
        """Count a client that is about to be let in; return why it is banned all the same, or "".

        It has logged in: no client gets another user banned by name, or one of another tenant.
        """
        who = tenant, client_id, username
        if not self.offences.is_flapping(*who):
            self.offences.note_connected(*who)
        return _said(REASONS["flaps"]) if self.offences.is_flapping(*who) else ""

    async def reload(self) -> int | None:
        """Read the file again; return how many bans there are, None without a file.

        Raises:
            BansError: It cannot be used; the bans stay as they were.
        """
        if self._path is None:
            return None
        self._of_file = await asyncio.to_thread(read_bans, self._path)
        self._list = None
        return len(self._of_file)

    def receive(self, record: LogRecord) -> None:
        """Take a record of `mqlake.gateways`, and cut off clients that it bans."""
        ban_id = ban_id_of(record.key or b"")
        if ban_id is None:
            return
        try:
            ban = None if record.value is None else decode_ban(record.value)
        except InvalidRecord as exc:
            logger.warning("ban ignored", extra={"fields": {"reason": str(exc)}})
            return
        self.offences.take(ban_id, ban)
        if ban is None:
            self._of_log.pop(ban_id, None)
        elif not ban.offence:
            self._of_log[ban_id] = ban
            if not self._is_cutting:  # once for all that come together
                self._is_cutting = True
                self._loop.call_soon(self.cut_banned)
        self._list = None

    def cut_banned(self) -> None:
        """End the connections of clients that are banned by now."""
        self._is_cutting = False
        for connection in list(self._connections):
            connection.admission.renew_bans()


def _said(reason: str) -> str:
    return f"banned: {reason}" if reason else "banned"
