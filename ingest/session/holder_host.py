"""Functions of its gateway that a holder of sessions (`ingest.session.holder`) calls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mqlake.errors import LogError
    from mqlake.records.shards import Key
    from mqlake.records.versions import Headers

Opening_contra = TypeVar("Opening_contra", contravariant=True)


class Refusal(Enum):
    """Why a client does not get its session here."""

    TAKEN_OVER = auto()
    """Another connection of the client has come since."""
    ANOTHERS = auto()
    """It is another principal's."""
    NOT_GIVEN = auto()
    """The log, or the gateway that is to give it, does not answer."""
    UNCERTAIN = auto()
    """One of these, but a full claim may have been granted, and settled as if the client had been
    here: it is not refused, see `ingest.session.opening`."""


REASONS: Final = {
    Refusal.TAKEN_OVER: "taken over at another gateway",
    Refusal.ANOTHERS: "the session is another user's",
}
"""For people; the others have one of their own each time."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A session that the owner of a shard grants, as it is stored."""

    session: Any
    """JSON of the session, None when there is none."""
    progress: Any
    subscriptions: Sequence[Any] = ()
    """Subscriptions that have records of their own."""
    is_full: bool = False
    """The claim said all that the session's record will: the granted session is durable."""


class HolderHost(Protocol[Opening_contra]):
    """Carries out decisions of a holder."""

    def append(
        self,
        shard: int,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        on_appended: Callable[[int, LogError | None], None],
    ) -> None:
        """Append a record to a shard; report where it stands, or why it does not."""
        ...

    def begin(self, key: Key, opening: Opening_contra, grant: Grant | None) -> None:
        """Begin a session that is held from now on; without a grant nothing is stored of it."""
        ...

    def refuse(self, key: Key, opening: Opening_contra, refusal: Refusal, reason: str) -> None:
        """Turn a client away whose session this gateway does not get; see `Refusal.UNCERTAIN`."""
        ...

    def let_go(self, key: Key) -> None:
        """Close the connection of a held session, and write where it stands."""
        ...

    def untake(self, key: Key) -> None:
        """Tell the shard of a free session that it is over (`Shard.untake`)."""
        ...

    def rewrite(self, key: Key) -> None:
        """Write a held session once more."""
        ...

    def rewrite_subscription(self, key: Key, topic_filter: str) -> None:
        """Write once more the record that a subscription of a held session has, or has not."""
        ...

    def abandon(self, key: Key) -> None:
        """Close the connection of a session that is not held any more; write nothing."""
        ...

    def confirmed(self) -> None:
        """Go on: sessions that are held now are certain."""
        ...
