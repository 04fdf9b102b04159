"""Federation of this machine's site with others, as its federator says in its heartbeat."""

from pathlib import Path

from pydantic import BaseModel, Field

from mqlake.errors import OperationalError
from mqlake.processes.heartbeat import read_heartbeat


class LinkCounters(BaseModel):
    sent: int = Field(description="messages, including those sent again")
    offered: int = Field(default=0, description="messages of which only the envelope was sent")
    handed: int = Field(default=0, description="messages for share groups with members behind it")
    returned: int = Field(default=0, description="of these, those for which it had no member left")
    expired: int = Field(description="messages that expired before it received them")
    over_hop_limit: int
    slowed: int = Field(default=0, description="times that its rate limit delayed messages")
    too_large: int = Field(description="messages over its size limit; it never gets them")
    malformed: int = Field(description="records with an unreadable envelope or properties")


class LinkView(BaseModel):
    site: int
    uri: str = Field(description="of its federator; empty: it connects to this site")
    there: bool = Field(description="it gets what it wants")
    reason: str = Field(description="why it does not; empty: it does")
    waiting: int = Field(description="messages that it has not acknowledged")
    behind: int = Field(description="records of this site's log that it may lack")
    gone: int = Field(description="times that its next record was no longer in the log")
    held: int = Field(
        default=0, description="messages from it that wait, unacknowledged, for others to come"
    )
    held_because: str = Field(default="", description="what it waits for; empty: nothing for long")
    wants: int = Field(default=0, description="number of filters wanted behind it")
    carries: list[str] = Field(default=[], description="the first 20 of these filters")
    bytes: int = Field(default=0, description="sent to it, of all packets")
    counters: LinkCounters


class SiteCounters(BaseModel):
    received: int = Field(description="messages from neighbours, copies included")
    appended: int = Field(description="of these, the new ones")
    duplicates: int
    echoes: int = Field(description="its own messages that came back")
    refused: int = Field(description="messages of topics not allowed on their link")
    malformed: int
    for_groups: int = Field(default=0, description="messages handed to it for share groups")
    unclaimed: int = Field(default=0, description="messages for share groups without a member left")
    outdated: int = Field(
        default=0, description="retained messages that were not the latest of the topic"
    )
    strangers: int = Field(description="packets from sites that are no neighbours")


class KnownSite(BaseModel):
    site: int
    uri: str = Field(description="that it announces; empty: none")
    links: list[int] = Field(description="sites that it has links to, according to both ends")
    state: str = Field(description="to this site: self, linked, known, asked or granted")


class OverlayView(BaseModel):
    finds: bool = Field(description="links are found; otherwise configured")
    least: int = Field(description="number of links wanted")
    most: int = Field(description="highest number of links")
    degree: int = Field(description="number of links")
    apart: list[int] = Field(description="unreachable sites")
    sites: list[KnownSite]
    counters: dict[str, int]


class Federation(BaseModel):
    healthy: bool
    detail: str
    site: int
    epoch: int = Field(description="changes when the offsets of the log start again")
    links: list[LinkView]
    streams: int = Field(description="partitions of other sites that sent messages")
    gaps: int = Field(description="of these, ranges that may still come by another path")
    interests: int = Field(default=0, description="filters of this site's subscribers")
    asked: int = Field(
        default=0, description="offered messages that did not come and were requested"
    )
    counters: SiteCounters
    overlay: OverlayView | None = Field(default=None, description="the map that it has learned")


class FederationLink:
    """Reads the heartbeats of the federator of a data directory.

    Args:
        data_dir: Data directory of the system.
    """

    def __init__(self, data_dir: Path) -> None:
        self._heartbeat = data_dir / "run" / "federation.json"

    @property
    def is_there(self) -> bool:
        """Tell whether there is one; it may have died."""
        return self._heartbeat.exists()

    def read(self) -> Federation:
        """Return its last heartbeat.

        Raises:
            OperationalError: That is too long ago.
        """
        beat = read_heartbeat(self._heartbeat)
        if beat is None or not beat.is_fresh() or "links" not in beat.figures:
            raise OperationalError("the federator says nothing; see logs/federation.log")
        return Federation.model_validate(
            {"healthy": beat.healthy, "detail": beat.detail, **beat.figures}
        )
