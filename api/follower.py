"""Follows `mqlake.sessions` and `mqlake.gateways`, so that a request finds them read already."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from api.bans import BanBook
from api.cache import CacheWriter, SessionCache
from api.following import Followed, LogFollower, Taker
from api.presence import Gateways
from api.rights import RightsBook
from mqlake.errors import InvalidRecord
from mqlake.records import GATEWAYS, SESSIONS

LOG_TOPICS: Final = (SESSIONS, GATEWAYS)


class Follower(LogFollower):
    """Keeps sessions and gateways as the log has them.

    Args:
        data_dir: Of the system.
        cache: Takes the sessions.
        gateways: Take their words.
        bans: Take what stands beside these; so do `rights`.
    """

    def __init__(
        self,
        data_dir: Path,
        cache: SessionCache,
        gateways: Gateways,
        bans: BanBook,
        rights: RightsBook,
    ) -> None:
        super().__init__(data_dir, "sessions", LOG_TOPICS)
        self._cache = cache
        self._gateways = gateways
        self._bans = bans
        self._rights = rights

    @contextmanager
    def taking(self) -> Iterator[Taker]:
        self._gateways.forget()
        self._bans.forget()
        self._rights.forget()
        with self._cache.writing() as writer:
            yield _Taker(writer, self._gateways, self._bans, self._rights)


class _Taker(Taker):
    def __init__(
        self, writer: CacheWriter, gateways: Gateways, bans: BanBook, rights: RightsBook
    ) -> None:
        self._writer = writer
        self._gateways = gateways
        self._bans = bans
        self._rights = rights

    def take(self, records: Sequence[Followed], *, is_old: bool) -> list[InvalidRecord]:
        refused: list[InvalidRecord] = []
        sessions = [(one.key, one.value) for one in records if one.log_topic == SESSIONS]
        for record in records:
            if record.log_topic == GATEWAYS:
                try:
                    self._bans.take(record.key, record.value)
                    self._rights.take(record.key, record.value)
                    self._gateways.receive(
                        record.key, record.value, is_old=is_old, logged_at_ms=record.at_ms
                    )
                except InvalidRecord as exc:
                    refused.append(exc)
        if sessions:
            refused += self._writer.apply(sessions)
        return refused

    def complete(self) -> None:
        self._writer.complete()
        self._bans.complete()
        self._rights.complete()
