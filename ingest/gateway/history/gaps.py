"""Gaps: messages that a session, or a share group, has missed, between offsets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from ingest.gateway.history.catching_up import CatchingUp, Pages, give, match
from ingest.session.client.catch_up import Missed
from ingest.session.subscriptions import ClientSubscription, Subscriptions
from mqlake.records.offsets import latest
from mqlake.topics.names import split_shared

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ingest.gateway.base.context import Context
    from ingest.gateway.history.catching_up import Take
    from mqlake.records.messages import LogRecord

LONG_GAP_OFFSETS: Final = 100_000
"""A gap of more offsets is read from the table: by topic, not message by message."""

LONG_AWAY_SECONDS: Final = 3600.0
"""So is that of a session that was away for longer: the log may not hold it any more."""


class Absent(Protocol):
    """A reader that has missed messages: a session, or a share group."""

    @property
    def tenant(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def is_ended(self) -> bool: ...
    @property
    def subscriptions(self) -> Mapping[str, ClientSubscription[Any]]:
        """Those of them count that are not shared."""
        ...

    def is_catching_up(self, topic_filter: str) -> bool:
        """Tell whether a subscription is given its messages otherwise."""
        ...


@dataclass(slots=True, eq=False)
class Gap:
    """Messages that one reader has missed.

    Implements `ingest.gateway.history.catching_up.Behind`.

    Attributes:
        given: Partition -> offset of the last record that was handed over to all who read together.
    """

    whom: Absent
    missed: Missed
    given: dict[int, int] = field(init=False, default_factory=dict)

    @property
    def tenant(self) -> str:
        return self.whom.tenant

    @property
    def client_id(self) -> str:
        return self.whom.client_id

    @property
    def pages(self) -> Pages:
        return Pages()

    @property
    def is_over(self) -> bool:
        return self.whom.is_ended

    def subscriptions(self) -> Iterator[ClientSubscription[Any]]:
        """Yield subscriptions from the cursor on, or later where they began later."""
        for one in self._missing():
            yield replace(one, starts=latest(self.missed.cursor, one.starts))

    def filters(self) -> list[str]:
        return [one.topic_filter for one in self._missing()]

    def _missing(self) -> Iterator[ClientSubscription[Any]]:
        """Yield all but shared ones, for others of their groups have got the messages.

        Also left out are those that get their history first.
        """
        for one in self.whom.subscriptions.values():
            topic_filter = one.topic_filter
            if not (
                split_shared(topic_filter).share_name or self.whom.is_catching_up(topic_filter)
            ):
                yield one


class Gaps:
    """Reads gaps.

    Args:
        context: Shared by all parts of the gateway.
        catching_up: Reads the log and the table.
    """

    def __init__(self, context: Context, catching_up: CatchingUp) -> None:
        self._clock = context.clock
        self._drops = context.drops
        self._catching_up = catching_up

    def missed(self, cursor: Sequence[int], ends: Sequence[int], since_ms: int) -> Missed:
        """Return the ranges between offsets for a reader that has been away since then."""
        away_ms = self._clock.now_ms() - since_ms
        return Missed(
            list(cursor), list(ends), LONG_GAP_OFFSETS, is_old=away_ms > LONG_AWAY_SECONDS * 1000
        )

    def taker(self, gaps: Sequence[Gap]) -> Take:
        """Return a function that delivers records to all that have missed them."""
        tree: Subscriptions[Any] = Subscriptions()
        given: dict[int, int] = {}
        for one in gaps:
            one.given = given
            for subscription in one.subscriptions():
                tree.add(one.tenant, subscription)
        clock, drops = self._clock, self._drops

        async def take(records: list[LogRecord]) -> None:
            now_ms = clock.now_ms()
            for record in records:
                given[record.partition] = record.offset
                found = match(tree, record)
                if found is not None:
                    give(*found, drops, now_ms)
            await asyncio.sleep(0)

        return take
