"""A step of an exchange whose message a share group gave to the client."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.progress import Progress


class SavedGroups(Protocol):
    """Implemented by `ingest.gateway.share_groups.ShareGroups`."""

    def after_saved(self, tenant: str, shared_filter: str, proceed: Callable[[], None]) -> None:
        """Call back, in the order of the calls, when the log knows what a part holds now."""
        ...


@dataclass(slots=True)
class GroupStep:
    """A step with a message of a share group. Implements `ingest.session.checkpoint.Saved`.

    The message is the client's before it leaves the record of the part: a crash between the
    two finds it in both, and it stays the client's.
    """

    groups: SavedGroups
    tenant: str
    shared_filter: str
    progress: Progress | None
    """Of a session that outlives its connection."""

    def after_saved(self, proceed: Callable[[], None]) -> None:
        in_part = partial(self.groups.after_saved, self.tenant, self.shared_filter, proceed)
        if self.progress is None:
            in_part()
        else:
            self.progress.after_saved(in_part)
