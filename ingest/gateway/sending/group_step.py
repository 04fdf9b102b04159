"""A step of an exchange whose message a share group gave to the client."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.sending.progress import SessionProgress


class GroupMember(Protocol):
    """A session that outlives its connection. Implemented by `ClientSession`."""

    def save_member(self, on_saved: Callable[[], None]) -> None:
        """Write its messages in flight of share groups; call back when the log has them."""
        ...

    def fall_behind(self, partition: int, offset: int) -> bool:
        """Go on from the log, from a message on that there is no room for; False: it cannot."""
        ...

    def stored(self) -> None:
        """Note that the log has answered for something that its release waits for."""
        ...


class SavedGroups(Protocol):
    """Implemented by `ingest.gateway.sharing.share_groups.ShareGroups`."""

    def after_saved(
        self,
        tenant: str,
        shared_filter: str,
        proceed: Callable[[], None],
        member: GroupMember | None = None,
    ) -> None:
        """Call back, in the order of the calls, when the log has a membership's present state.

        The log has the member's messages in flight before that.
        """
        ...


@dataclass(slots=True)
class GroupStep:
    """A step with a message of a share group. Implements `ingest.session.client.checkpoint.Saved`.

    The shard of the group knows that the message is the client's before the client's progress does:
    a crash between the two leaves it to others, for the client has not been sent it.
    """

    groups: SavedGroups
    tenant: str
    shared_filter: str
    progress: SessionProgress | None
    """Progress of a session that outlives its connection."""
    member: GroupMember | None = None
    """Member that the message was given to."""
    on_given: Callable[[], None] | None = None
    """Called when the shard of the group knows."""

    def after_saved(self, proceed: Callable[[], None]) -> None:
        given = partial(self._given, proceed)
        self.groups.after_saved(self.tenant, self.shared_filter, given, self.member)

    def _given(self, proceed: Callable[[], None]) -> None:
        if self.on_given is not None:
            self.on_given()
        if self.progress is None:
            proceed()
        else:
            self.progress.after_saved(proceed)
