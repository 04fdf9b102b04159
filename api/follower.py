"""Follows `mqlake.sessions` and `mqlake.gateways`, so that a request finds them read already."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from api.cache import CacheWriter, SessionCache
from api.following import Followed, LogFollower, Taker
from api.presence import Gateways
from mqlake.errors import InvalidRecord
from mqlake.records import GATEWAYS, SESSIONS

LOG_TOPICS: Final = (SESSIONS, GATEWAYS)


class GatewayView(Protocol):
    """What stands in `mqlake.gateways` beside the words of gateways."""

    def forget(self) -> None:
        """Begin anew."""
        ...

    def take(self, key: bytes, value: bytes | None) -> None:
        """Take a record; what is something else is passed over.

        Raises:
            InvalidRecord: It is of another form.
        """
        ...

    def complete(self) -> None:
        """Take it that all has been read."""
        ...


class Follower(LogFollower):
    """Keeps sessions and gateways as the log has them.

    Args:
        data_dir: Of the system.
        cache: Takes the sessions.
        gateways: Take their words.
        views: Take what stands beside these.
    """

    def __init__(
        self,
        data_dir: Path,
        cache: SessionCache,
        gateways: Gateways,
        views: Sequence[GatewayView],
    ) -> None:
        super().__init__(data_dir, "sessions", LOG_TOPICS)
        self._cache = cache
        self._gateways = gateways
        self._views = views

    @contextmanager
    def taking(self) -> Iterator[Taker]:
        self._gateways.forget()
        for view in self._views:
            view.forget()
        with self._cache.writing() as writer:
            yield _Taker(writer, self._gateways, self._views)


class _Taker(Taker):
    def __init__(
        self, writer: CacheWriter, gateways: Gateways, views: Sequence[GatewayView]
    ) -> None:
        self._writer = writer
        self._gateways = gateways
        self._views = views

    def take(self, records: Sequence[Followed], *, is_old: bool) -> list[InvalidRecord]:
        refused: list[InvalidRecord] = []
        sessions = [(one.key, one.value) for one in records if one.log_topic == SESSIONS]
        for record in records:
            if record.log_topic == GATEWAYS:
                try:
                    for view in self._views:
                        view.take(record.key, record.value)
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
        for view in self._views:
            view.complete()
