"""Bans of all gateways: records of `mqlake.gateways`, followed and written."""

import secrets
import threading
from collections.abc import Iterable
from typing import Final

from api.log import LogAppender
from mqlake.bans import Ban, KeptBan, ban_id_of, ban_key, decode_ban, encode_ban
from mqlake.clock import Clock
from mqlake.errors import MqlakeError
from mqlake.records import GATEWAYS

MAX_BANS: Final = 10_000


class TooManyBans(MqlakeError):  # noqa: N818 - it names what is in the way
    """There is no room for another one."""


class UnknownBan(MqlakeError):  # noqa: N818
    """There is none of this identifier."""


class MaterialisedBans:
    """The bans as the log has them; safe to use from any thread.

    Attributes:
        is_complete: Whether all have been read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bans: dict[str, KeptBan] = {}
        self.is_complete = False

    def forget(self) -> None:
        """Begin anew."""
        with self._lock:
            self.is_complete = False
            self._bans.clear()

    def take(self, key: bytes, value: bytes | None) -> None:
        """Take a record of `mqlake.gateways`; what is no ban is passed over.

        Raises:
            InvalidRecord: It is of another form.
        """
        ban_id = ban_id_of(key)
        if ban_id is None:
            return
        ban = None if value is None else decode_ban(value)
        with self._lock:
            if ban is None:
                self._bans.pop(ban_id, None)
            else:
                self._bans[ban_id] = ban

    def complete(self) -> None:
        self.is_complete = True

    def all(self) -> list[tuple[str, KeptBan]]:
        """Return identifiers and bans, by identifier."""
        with self._lock:
            return sorted(self._bans.items())

    def get(self, ban_id: str) -> KeptBan | None:
        return self._bans.get(ban_id)


class BanChanges:
    """Writes bans; safe to use from any thread.

    Args:
        log: Where to.
        view: Takes at once what is written.
        clock: Says when one was made, and which are over.
    """

    def __init__(self, log: LogAppender, view: MaterialisedBans, clock: Clock) -> None:
        self._log = log
        self._view = view
        self._clock = clock
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def create(self, ban: Ban, by: str) -> tuple[str, KeptBan]:
        """Ban somebody; those that are over are forgotten.

        Raises:
            TooManyBans: There are so many that are not over.
            LogError: The log does not answer; `delete` raises it too.
        """
        now_ms = self._clock.now_ms()
        kept = KeptBan(**ban.model_dump(), at=now_ms, by=by)
        ban_id = secrets.token_hex(8)
        with self._lock:
            over = [name for name, one in self._view.all() if one.is_over(now_ms)]
            if len(self._view.all()) - len(over) >= MAX_BANS:
                raise TooManyBans(f"there are {MAX_BANS} bans, which is the limit: lift some")
            self._lift(over)
            self._write(ban_id, encode_ban(kept))
        return ban_id, kept

    def delete(self, ban_id: str) -> None:
        """Lift a ban.

        Raises:
            UnknownBan: There is none.
        """
        with self._lock:
            if self._view.get(ban_id) is None:
                raise UnknownBan(f"there is no ban {ban_id!r}")
            self._lift([ban_id])

    def _lift(self, ban_ids: Iterable[str]) -> None:
        for ban_id in ban_ids:
            self._write(ban_id, None)

    def _write(self, ban_id: str, value: bytes | None) -> None:
        key = ban_key(ban_id)
        self._log.append(GATEWAYS, key, value, what="ban")
        self._view.take(key, value)
