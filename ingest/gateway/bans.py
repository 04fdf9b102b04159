"""Who is not let in: by a file, by records of `mqlake.gateways`, or for a time by what it did."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ingest.gateway.authentication.failures import network_of
from ingest.session.rates import Strikes
from mqlake.bans import BanList, ban_id_of, decode_ban, read_bans
from mqlake.errors import InvalidRecord

if TYPE_CHECKING:
    from pathlib import Path

    from ingest.gateway.connections import Connections
    from ingest.gateway.context import Context
    from mqlake.bans import Ban
    from mqlake.records import LogRecord

logger = logging.getLogger(__name__)

WINDOW_SECONDS: Final = 60.0
GUESSES: Final = "too many failed logins from its address"
FLAPS: Final = "it has connected too often"


class Bans:
    """Tells who is banned.

    Args:
        bans_file: Bans beside those of the log.
        context: Of the gateway; its limits say who gets one for a time.
        connections: Of clients that may be banned.

    Raises:
        BansError: The file cannot be used.
    """

    def __init__(self, bans_file: Path | None, context: Context, connections: Connections) -> None:
        settings = context.settings.limits
        self._path = bans_file
        self._of_file = () if bans_file is None else read_bans(bans_file)
        self._of_log: dict[str, Ban] = {}
        self._list: BanList | None = None  # made anew when it is asked
        self._clock = context.clock
        self._loop = context.loop
        self._connections = connections
        self._is_cutting = False

        def strikes(most: int) -> Strikes | None:
            return Strikes(most, WINDOW_SECONDS, settings.ban_seconds) if most else None

        self._guesses = strikes(settings.failed_logins_before_ban)
        self._flaps = strikes(settings.connects_before_ban)

    def of(
        self, client_id: str, username: str | None, address: str, token_id: str | None = None
    ) -> str:
        """Return why somebody is banned, "" when not.

        Args:
            client_id: As it stands in CONNECT, or was given.
            username: Who it is, or says that it is.
            address: Without its port, "" where there is none.
            token_id: Of the token that it has logged in by.
        """
        guesses, now = self._guesses, self._clock.monotonic()
        if guesses is not None and address and guesses.is_out(network_of(address), now):
            return _said(GUESSES)
        if self._list is None:
            self._list = BanList((*self._of_file, *self._of_log.values()))
        now_ms = self._clock.now_ms()
        ban = self._list.find(client_id, username, address, now_ms, token_id)
        return "" if ban is None else _said(ban.reason)

    def note_failed_login(self, address: str) -> None:
        """Count a password that was wrong."""
        if self._guesses is not None and address:
            self._guesses.note(network_of(address), self._clock.monotonic())

    def note_connected(self, tenant: str, client_id: str, username: str | None) -> str:
        """Count a client that is about to be let in; return why it is banned all the same, or "".

        It has logged in: nobody gets somebody else banned by his name, or one of another tenant.
        """
        if self._flaps is None:
            return ""
        now, name = self._clock.monotonic(), f"{tenant}\0{username or ''}\0{client_id}"
        is_out = self._flaps.is_out(name, now) or self._flaps.note(name, now)
        return _said(FLAPS) if is_out else ""

    async def reload(self) -> int | None:
        """Read the file anew; return how many bans there are, None without a file.

        Raises:
            BansError: It cannot be used; the bans stay as they were.
        """
        if self._path is None:
            return None
        self._of_file = await asyncio.to_thread(read_bans, self._path)
        self._list = None
        return len(self._of_file)

    def receive(self, record: LogRecord) -> None:
        """Take a record of `mqlake.gateways`, and cut off who is banned by it."""
        ban_id = ban_id_of(record.key or b"")
        if ban_id is None:
            return
        if record.value is None:
            self._of_log.pop(ban_id, None)
        else:
            try:
                self._of_log[ban_id] = decode_ban(record.value)
            except InvalidRecord as exc:
                logger.warning("ban ignored", extra={"fields": {"reason": str(exc)}})
                return
            if not self._is_cutting:  # once for all that come together
                self._is_cutting = True
                self._loop.call_soon(self.cut_banned)
        self._list = None

    def cut_banned(self) -> None:
        """End the connections of who is banned by now."""
        self._is_cutting = False
        for connection in list(self._connections):
            connection.renew_bans()


def _said(reason: str) -> str:
    return f"banned: {reason}" if reason else "banned"
