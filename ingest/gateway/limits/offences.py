"""Bans for a time, for offences: guessed passwords, or connects again and again.

The gateway that finds one writes the ban to `mqlake.gateways`, as the API does, so that all
gateways know it, and an operator sees it and may lift it. No connected client is cut off: an
address has many behind it, and they have logged in.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from ingest.session.limits.rates import Strikes
from mqlake.bans import BannedClient, KeptBan, ban_key, encode_ban
from mqlake.errors import LogError
from mqlake.records.messages import GATEWAYS
from mqlake.security.networks import network_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.gateway.base.context import Context
    from mqlake.bans import Offence
    from mqlake.log.contract import LogWriter

logger = logging.getLogger(__name__)

WINDOW_SECONDS: Final = 60.0
MOST_TOLD: Final = 1_000
"""Bans that are in the log at once; of more each gateway knows its own alone."""
MOST_KNOWN: Final = 10_000
REASONS: Final[dict[Offence, str]] = {
    "guesses": "too many failed logins from its address",
    "flaps": "it has connected too often",
}


class Offences:
    """Counts offences, and knows which clients are out.

    Args:
        context: Shared by all parts; its limits say how often is too often, and for how long.
        writer: Takes the records for the others.
    """

    def __init__(self, context: Context, writer: LogWriter) -> None:
        limits = context.settings.limits
        self._me = context.settings.name
        self._seconds = limits.ban_seconds
        self._clock = context.clock
        self._writer = writer
        guesses, flaps = limits.failed_logins_before_ban, limits.connects_before_ban
        self._guesses = Strikes(guesses, WINDOW_SECONDS) if guesses else None
        self._flaps = Strikes(flaps, WINDOW_SECONDS) if flaps else None
        # By identifier, those that are over too; the log has those of the second.
        self._bans: dict[str, KeptBan] = {}
        self._told: set[str] = set()

    def is_guesser(self, address: str) -> bool:
        """Tell whether an address, without its port, is out."""
        return self._is_out("guesses", network_of(address)) if self._bans and address else False

    def note_failed_login(self, address: str) -> None:
        """Count a password that was wrong."""
        if self._guesses is None or not address:
            return
        network = network_of(address)
        if self._guesses.note(network, self._clock.monotonic()):
            self._put_out("guesses", network, addresses=(network,))

    def is_flapping(self, tenant: str, client_id: str, username: str | None) -> bool:
        """Tell whether a client is out as a user; `note_connected` counts it before."""
        return bool(self._bans) and self._is_out("flaps", _name(tenant, client_id, username))

    def note_connected(self, tenant: str, client_id: str, username: str | None) -> None:
        """Count a client that is about to be let in."""
        if self._flaps is None:
            return
        name = _name(tenant, client_id, username)
        if self._flaps.note(name, self._clock.monotonic()):
            client = BannedClient(tenant=tenant, user=username, client_id=client_id)
            self._put_out("flaps", name, clients=(client,))

    def take(self, ban_id: str, ban: KeptBan | None) -> None:
        """Take a ban from the log; None: it was lifted."""
        if ban is None or not ban.offence:
            self._forget(ban_id)
        else:
            self._keep(ban_id, ban)
            self._told.add(ban_id)

    def _is_out(self, offence: Offence, name: str) -> bool:
        ban = self._bans.get(_identifier(offence, name))
        return ban is not None and not ban.is_over(self._clock.now_ms())

    def _put_out(self, offence: Offence, name: str, **whom: object) -> None:
        now_ms = self._clock.now_ms()
        self._say((one, None) for one in self._over(now_ms))
        until = datetime.fromtimestamp(now_ms / 1000, UTC) + timedelta(seconds=self._seconds)
        said = {"until": until, "reason": REASONS[offence], "at": now_ms, "by": self._me}
        ban = KeptBan.model_validate({**said, **whom, "offence": offence})
        ban_id = _identifier(offence, name)
        self._keep(ban_id, ban)
        if ban_id in self._told or len(self._told) < MOST_TOLD:
            self._told.add(ban_id)
            self._say([(ban_id, ban)])

    def _over(self, now_ms: int) -> list[str]:
        """Forget bans that are over; return those that the log is to forget."""
        over = [ban_id for ban_id, ban in self._bans.items() if ban.is_over(now_ms)]
        told = [ban_id for ban_id in over if ban_id in self._told]
        for ban_id in over:
            self._forget(ban_id)
        return told

    def _keep(self, ban_id: str, ban: KeptBan) -> None:
        if ban_id not in self._bans and len(self._bans) >= MOST_KNOWN:
            self._forget(next(iter(self._bans)))
        self._bans[ban_id] = ban

    def _forget(self, ban_id: str) -> None:
        self._bans.pop(ban_id, None)
        self._told.discard(ban_id)

    def _say(self, bans: Iterable[tuple[str, KeptBan | None]]) -> None:
        for ban_id, ban in bans:
            value = None if ban is None else encode_ban(ban)
            try:
                self._writer.append(GATEWAYS, ban_key(ban_id), value, [], _written, partition=0)
            except LogError as error:
                _written(0, 0, error)


def _written(_partition: int, _offset: int, error: LogError | None) -> None:
    if error is not None:  # it counts here all the same
        logger.warning("a ban was not written to the log", extra={"fields": {"reason": str(error)}})


def _name(tenant: str, client_id: str, username: str | None) -> str:
    return f"{tenant}\0{username or ''}\0{client_id}"


def _identifier(offence: Offence, name: str) -> str:
    """Return the same one at each gateway."""
    return f"{offence}-{sha256(name.encode()).hexdigest()[:16]}"
