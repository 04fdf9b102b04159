"""Who is not let in: by a file, read anew when somebody says so, or for a time by what it did."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingest.gateway.authentication.failures import network_of
from ingest.session.rates import Strikes
from mqlake.bans import BanList, read_bans

if TYPE_CHECKING:
    from pathlib import Path

    from ingest.gateway.limits import LimitSettings
    from mqlake.clock import Clock

WINDOW_SECONDS: Final = 60.0
GUESSES: Final = "too many failed logins from its address"
FLAPS: Final = "it has connected too often"


class Bans:
    """Tells who is banned.

    Args:
        bans_file: The bans; without one there are those for a time alone.
        settings: Who gets one of these.
        clock: For their times.

    Raises:
        BansError: The file cannot be used.
    """

    def __init__(self, bans_file: Path | None, settings: LimitSettings, clock: Clock) -> None:
        self._path = bans_file
        self._list = BanList() if bans_file is None else read_bans(bans_file)
        self._clock = clock

        def strikes(most: int) -> Strikes | None:
            return Strikes(most, WINDOW_SECONDS, settings.ban_seconds) if most else None

        self._guesses = strikes(settings.failed_logins_before_ban)
        self._flaps = strikes(settings.connects_before_ban)

    def of(self, client_id: str, username: str | None, address: str) -> str:
        """Return why somebody is banned, "" when not.

        Args:
            client_id: As it stands in CONNECT, or was given.
            username: Who it is, or says that it is.
            address: Without its port, "" where there is none.
        """
        guesses, now = self._guesses, self._clock.monotonic()
        if guesses is not None and address and guesses.is_out(network_of(address), now):
            return _said(GUESSES)
        ban = self._list.find(client_id, username, address, self._clock.now_ms())
        return "" if ban is None else _said(ban.reason)

    def note_failed_login(self, address: str) -> None:
        """Count a password that was wrong."""
        if self._guesses is not None and address:
            self._guesses.note(network_of(address), self._clock.monotonic())

    def note_connected(self, client_id: str, username: str | None) -> str:
        """Count a client that is about to be let in; return why it is banned all the same, or "".

        It has logged in: nobody gets somebody else banned by his name.
        """
        if self._flaps is None:
            return ""
        now, name = self._clock.monotonic(), f"{username or ''}\0{client_id}"
        is_out = self._flaps.is_out(name, now) or self._flaps.note(name, now)
        return _said(FLAPS) if is_out else ""

    async def reload(self) -> int | None:
        """Read the file anew; return how many bans there are, None without a file.

        Raises:
            BansError: It cannot be used; the bans stay as they were.
        """
        if self._path is None:
            return None
        self._list = await asyncio.to_thread(read_bans, self._path)
        return len(self._list)


def _said(reason: str) -> str:
    return f"banned: {reason}" if reason else "banned"
