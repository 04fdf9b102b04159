"""The overlay of a process: its sites, their addresses, and packets to them.

With `[overlay]` in the settings links are found; without, set neighbours tell each other the map.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from ingest.federation import overlay_packets
from ingest.federation.overlay import Overlay, SiteAddress
from ingest.federation.overlay_events import Bounds, LinkChange, OverlayEvent
from ingest.federation.settings import NeighborSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ingest.federation.overlay_events import Away, WayDown, WayUp
    from ingest.federation.overlay_map import SiteMember
    from ingest.federation.overlay_packets import OverlayPacket
    from ingest.federation.settings import FederationSettings

_logger = logging.getLogger(__name__)

WORDS: Final = {
    OverlayEvent.AGREE: "a link is found",
    OverlayEvent.LOSE: "a link is given up: its site is not heard",
    OverlayEvent.REFUSE: "a link is given up: its site has dropped it",
    OverlayEvent.DROP: "a link is dropped: there is another way",
}


class SiteOverlay:
    """A site's overlay and its settings.

    Args:
        settings: Settings of the process.
        epoch: Epoch of this run.
        now: The time.
    """

    def __init__(self, settings: FederationSettings, epoch: int, now: float) -> None:
        self._settings = settings
        found = settings.overlay
        self._secret = found.secret.get_secret_value().encode()
        self._seeds = {one.id: one for one in found.seeds} if found.finds else {}
        self._fixed = {one.id: one for one in settings.neighbors}
        self._found: dict[int, NeighborSettings] = {}
        self.finds = found.finds
        self.overlay = Overlay(
            settings.host.id,
            epoch,
            address=SiteAddress(
                found.uri if found.finds else _uri_of(settings), settings.host.protocol
            ),
            seeds=self._seeds,
            may_link=self._may_link,
            bounds=_bounds(settings, len(self._fixed)),
            seed=epoch,
            now=now,
        )
        self.overlay.become(self._fixed, now)

    @property
    def prefix(self) -> str:
        """The topic below which packets come."""
        return f"{self._settings.control_prefix}/{overlay_packets.OVERLAY}/"

    @property
    def topic(self) -> str:
        """The topic by which this site speaks."""
        return f"{self.prefix}{self._settings.host.id}"

    def become(self, fixed: Iterable[NeighborSettings], now: float) -> None:
        """Have these neighbours set from now on."""
        self._fixed = {one.id: one for one in fixed}
        self.overlay.become(self._fixed, now)

    def step(self, event: WayUp | WayDown | Away, now: float) -> None:
        """Take an event of a way."""
        self.overlay.step(event, now)

    def hear(self, payload: bytes, now: float) -> None:
        """Take a packet.

        Raises:
            InvalidPacket: It is none of ours.
        """
        self.overlay.step(overlay_packets.decode(payload, self._secret), now)

    def ready(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Yield packets to be sent, each with its site; log events of links."""
        for effect in self.overlay.ready(now):
            if isinstance(effect, LinkChange):
                fields = {"site": effect.site, "links": self.overlay.degree}
                _logger.info(WORDS[effect.event], extra={"fields": fields})
            else:
                yield effect.to, self._encode(effect)

    def _encode(self, packet: OverlayPacket) -> bytes:
        return overlay_packets.encode(packet, self._secret)

    def brokers(self) -> dict[int, NeighborSettings]:
        """Return the sites that a way is to be open to, with where they are."""
        contacts = self.overlay.contacts
        return {site: one for site in contacts if (one := self._broker(site)) is not None}

    def _broker(self, site: int) -> NeighborSettings | None:
        """Return where a site is: as the settings say, else as it says if that is allowed."""
        known = self._fixed.get(site) or self._seeds.get(site)
        if known is not None:
            return known
        member = self.overlay.map.members.get(site)
        if member is None or not self._settings.overlay.allows(site, member.uri):
            return None
        found = self._found.get(site)
        if found is None or (found.uri, found.protocol) != (member.uri, member.protocol):
            found = self._found[site] = self._settings_of(member)
        return found

    def _settings_of(self, member: SiteMember) -> NeighborSettings:
        given = self._settings.overlay
        return NeighborSettings(
            id=member.site,
            uri=member.uri,
            protocol="3.1.1" if member.protocol == "3.1.1" else "5.0",
            username=given.username,
            password=given.password,
            ca_certificates=given.ca_certificates,
            certificate=given.certificate,
            key=given.key,
        )

    def _may_link(self, site: int, uri: str) -> bool:
        if not self.finds:
            return False
        return site in self._seeds or self._settings.overlay.allows(site, uri)

    def members(self) -> list[SiteMember]:
        """Return the entries of other sites, as they tell of themselves."""
        return list(self.overlay.map.members.values())

    def detail(self) -> str:
        """Return a few words on the known sites."""
        map_ = self.overlay.map
        reachable = len(map_.reachable()) - 1
        return f"{reachable} of {len(map_.members)} known sites reached"

    def figures(self) -> dict[str, Any]:
        """Return the map, fit for JSON."""
        return {"finds": self.finds, **self.overlay.figures()}


def _uri_of(settings: FederationSettings) -> str:
    """Return the address of a site whose neighbours are set: for people, not for connections."""
    if settings.overlay.uri or settings.log is not None:
        return settings.overlay.uri
    return settings.host.uri


def _bounds(settings: FederationSettings, fixed: int) -> Bounds:
    given = settings.overlay
    return Bounds(
        least=given.least_links if given.finds else 0,
        most=given.most_links if given.finds else fixed,
        beacon_interval=settings.beacon_interval,
        most_sites=given.max_sites,
        forget_seconds=given.forget_seconds,
    )
