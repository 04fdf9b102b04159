"""A round: records that go to the log together for all that wait for routes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from mqlake.errors import LogError
    from mqlake.records.messages import Barrier, Route


class RouteRequest:
    """Requested routes, on their way through the rounds.

    Attributes:
        routes: The filters.
        starts: Per partition the offset from which on messages count, filled in when it is known:
            at the latest before a message behind it is delivered; until then it is `NOT_YET`.
        counted: Done when the log has the routes and barriers, with the starts. It fails with
            `LogError` when the log did not take all of the routes; the members count until they are
            unsubscribed.
        routed: Done when, after that, the router has the routes.
    """

    __slots__ = ("counted", "routed", "routes", "starts")

    def __init__(
        self, routes: Sequence[Route], starts: list[int], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.routes = routes
        self.starts = starts
        self.counted: asyncio.Future[list[int]] = loop.create_future()
        self.routed: asyncio.Future[None] = loop.create_future()

    def count(self, starts: list[int]) -> None:
        """Note that the log has routes and barriers."""
        self.starts = starts
        if not self.counted.done():  # a cancelled one has no waiter
            self.counted.set_result(starts)

    def finish(self) -> None:
        """Note that the router has the routes."""
        if not self.routed.done():
            self.routed.set_result(None)

    def fail(self, error: LogError) -> None:
        if not self.counted.done():
            self.counted.set_exception(error)


@dataclass(slots=True, eq=False)
class Round:
    number: int
    starts: list[int]
    subscribing: list[RouteRequest] = field(default_factory=list)
    """They count from its barriers."""
    announcing: list[RouteRequest] = field(default_factory=list)
    """Their routes are in it; they count from the next one's barriers."""
    announced: list[RouteRequest] = field(default_factory=list)
    """Their routes were in an earlier one; they count from its barriers."""
    followers: list[RouteRequest] = field(default_factory=list)
    """They count already, but one of their routes had to be announced again."""
    routes: list[Route] = field(default_factory=list)
    """Routes whose entries wait for this round."""
    written: list[Route] = field(default_factory=list)
    """Routes whose records it has, withdrawals and new member counts too."""
    barrier: Barrier | None = None
    last_number: int = 0
    """Number of this gateway's last route record when it was made."""
    unreported: int = 0
    error: LogError | None = None
    sent_at: float = 0.0
    is_counted: bool = False
    is_back: bool = False

    @property
    def needs_barriers(self) -> bool:
        return bool(self.subscribing or self.announced or self.routes)
