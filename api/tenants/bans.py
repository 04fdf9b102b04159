"""Bans of all gateways: records of `mqlake.gateways`, followed and written."""

import secrets
from typing import Final

from api.log.materialised import MaterialisedView
from api.log.repository import InTheWay, NotThere, RecordKind, Repository
from mqlake.bans import Ban, KeptBan, ban_id_of, ban_key, decode_ban, encode_ban
from mqlake.records.messages import GATEWAYS
from mqlake.records.rule_facts import keep

MAX_BANS: Final = 10_000


class MaterialisedBans(MaterialisedView):
    """The bans as the log has them."""

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._bans: dict[str, KeptBan] = {}

    def _take(self, data: bytes, value: bytes | None) -> None:
        ban_id = ban_id_of(data)
        if ban_id is not None:
            keep(self._bans, ban_id, None if value is None else decode_ban(value))

    def all(self) -> list[tuple[str, KeptBan]]:
        """Return identifiers and bans, by identifier."""
        with self._changed:
            return sorted(self._bans.items())

    def get(self, ban_id: str) -> KeptBan | None:
        return self._bans.get(ban_id)


class BanChanges(Repository[str, KeptBan, MaterialisedBans]):
    """Writes bans."""

    kind = RecordKind(GATEWAYS, ban_key, encode_ban, lambda _ban_id: "ban", has_version=False)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def create(self, ban: Ban, by: str) -> tuple[str, KeptBan]:
        """Make a ban; those that are over are forgotten.

        Raises:
            InTheWay: There is no room: too many are not over.
            LogError: The log does not answer; `delete` raises it too.
        """
        now_ms = self._clock.now_ms()
        kept = KeptBan(**ban.model_dump(), at=now_ms, by=by)
        ban_id = secrets.token_hex(8)
        with self._lock:
            over = [name for name, one in self._view.all() if one.is_over(now_ms)]
            if len(self._view.all()) - len(over) >= MAX_BANS:
                raise InTheWay(f"there are {MAX_BANS} bans, which is the limit: lift some")
            self.write([*((name, None) for name in over), (ban_id, kept)])
        return ban_id, kept

    def delete(self, ban_id: str) -> None:
        """Lift a ban.

        Raises:
            NotThere: There is none.
        """
        with self._lock:
            if self._view.get(ban_id) is None:
                raise NotThere(f"there is no ban {ban_id!r}")
            self.write([(ban_id, None)])
