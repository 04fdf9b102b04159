"""Federation of this machine's site with others, as its federator says in its heartbeat."""

from pathlib import Path

from pydantic import BaseModel, Field

from mqlake.errors import OperationalError
from mqlake.heartbeat import read_heartbeat


class LinkCounters(BaseModel):
    sent: int = Field(description="messages, those that were sent again included")
    offered: int = Field(default=0, description="messages of which it was sent the envelope alone")
    handed: int = Field(
        default=0, description="messages for share groups that have members behind it"
    )
    returned: int = Field(
        default=0, description="of these, the ones that it had no member for any more"
    )
    expired: int = Field(description="messages that expired before it got them")
    over_hop_limit: int
    slowed: int = Field(default=0, description="times that its rate held messages back")
    too_large: int = Field(description="larger than it takes; it never gets them")
    malformed: int = Field(description="records whose envelope or properties cannot be read")


class LinkView(BaseModel):
    site: int
    uri: str = Field(description="of its federator; empty: it connects to this site")
    there: bool = Field(description="it gets what it wants")
    reason: str = Field(description="why not; empty: it is there")
    waiting: int = Field(description="messages that it has not acknowledged")
    behind: int = Field(description="records of this site's log that it may not have")
    gone: int = Field(description="times that the log had no more what it was to get next")
    wants: int = Field(default=0, description="filters of what is wanted behind it")
    carries: list[str] = Field(default=[], description="of these filters the first 20")
    bytes: int = Field(default=0, description="sent to it, of all packets")
    counters: LinkCounters


class SiteCounters(BaseModel):
    received: int = Field(description="messages of neighbours, copies included")
    appended: int = Field(description="of these, new ones")
    duplicates: int
    echoes: int = Field(description="its own, come back")
    refused: int = Field(description="of topics that their link may not bring")
    malformed: int
    for_groups: int = Field(
        default=0, description="messages that were handed over to it for share groups"
    )
    unclaimed: int = Field(
        default=0, description="messages for share groups that nobody has a member for any more"
    )
    outdated: int = Field(
        default=0, description="retained messages that were not the latest of their topic"
    )
    strangers: int = Field(description="connections of whom nobody knows here")


class KnownSite(BaseModel):
    site: int
    uri: str = Field(description="where it says that it is; empty: it does not")
    links: list[int] = Field(description="sites that it has links to, as both ends tell")
    state: str = Field(description="to this site: self, linked, known, asked or granted")


class OverlayView(BaseModel):
    finds: bool = Field(description="links are found; else they are set")
    least: int = Field(description="links that are wanted")
    most: int = Field(description="links that there may be")
    degree: int = Field(description="links that there are")
    apart: list[int] = Field(description="sites that no way leads to")
    sites: list[KnownSite]
    counters: dict[str, int]


class Federation(BaseModel):
    healthy: bool
    detail: str
    site: int
    epoch: int = Field(description="another one when the offsets of the log have begun anew")
    links: list[LinkView]
    streams: int = Field(description="partitions of other sites of which messages came")
    gaps: int = Field(description="of these, ranges that may still come on another path")
    interests: int = Field(default=0, description="filters of this site's subscribers")
    asked: int = Field(default=0, description="messages that another path was asked for in the end")
    counters: SiteCounters
    overlay: OverlayView | None = Field(default=None, description="the map that it has learned")


class FederationLink:
    """Reads the heartbeats of the federator of a data directory.

    Args:
        data_dir: Of the system.
    """

    def __init__(self, data_dir: Path) -> None:
        self._heartbeat = data_dir / "run" / "federation.json"

    @property
    def is_there(self) -> bool:
        """Whether there is one; it may have died."""
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
