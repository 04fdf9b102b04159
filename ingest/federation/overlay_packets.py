"""Packets between sites of an overlay: where they stand, and which sites there are.

A packet is `<HMAC-SHA256 of the rest in hex> <JSON>`, by the secret that all sites of the overlay
have. So a site without it cannot join, or announce sites, even if a broker lets it publish
anything; one who knows it is trusted. In it stand the site that it is for and a number that rises
with each packet of a run: a copy counts for nothing.
"""

import hmac
import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from ingest.federation.overlay_map import SiteMember
from ingest.federation.packets import InvalidPacket

VERSION: Final = 1
OVERLAY: Final = "overlay"
"""The level below the prefix where packets are published: `<prefix>/overlay/<sender>`."""

MOST_MEMBERS: Final = 100
"""In a packet."""
MOST_LINKS: Final = 256
MOST_URI: Final = 512
_MAC: Final = 64


class Stance(Enum):
    """The other side's state, as the sender sees it."""

    ASK = "ask"
    """It wants a link."""
    LINKED = "linked"
    """It has one."""
    NONE = "none"
    """It has none, and asks for none."""


@dataclass(slots=True)
class OverlayPacket:
    """One packet."""

    sender: int
    to: int
    epoch: int
    number: int
    stance: Stance
    members: list[SiteMember] = field(default_factory=list)


def encode(packet: OverlayPacket, secret: bytes) -> bytes:
    """Return the payload of a packet."""
    told = {
        "v": VERSION,
        "from": packet.sender,
        "to": packet.to,
        "epoch": packet.epoch,
        "number": packet.number,
        "stance": packet.stance.value,
        "members": packet.members,
    }
    body = json.dumps(told, separators=(",", ":")).encode()
    return _mac(body, secret) + b" " + body


def decode(payload: bytes, secret: bytes) -> OverlayPacket:
    """Read a packet.

    Raises:
        InvalidPacket: It is none, of a version that is not known, or of a site that does not know
            the secret.
    """
    mac, body = payload[:_MAC], payload[_MAC + 1 :]
    if not hmac.compare_digest(mac, _mac(body, secret)):
        raise InvalidPacket("overlay packet with another secret")
    try:
        found = json.loads(body)
        if found["v"] != VERSION:
            raise InvalidPacket(f"overlay packet of version {found['v']!r}, expected {VERSION}")
        members = found["members"]
        if len(members) > MOST_MEMBERS:
            raise InvalidPacket(f"overlay packet of {len(members)} members")
        return OverlayPacket(
            _number(found["from"]),
            _number(found["to"]),
            _number(found["epoch"]),
            _number(found["number"]),
            Stance(found["stance"]),
            [_member(*one) for one in members],
        )
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise InvalidPacket(f"overlay packet cannot be read: {exc!r}") from exc


def _mac(body: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, body, "sha256").hex().encode()


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"expected a number, got {value!r}")
    return value


def _member(
    site: Any, epoch: Any, sequence: Any, uri: Any, protocol: Any, least: Any, most: Any, links: Any
) -> SiteMember:
    if not isinstance(uri, str) or len(uri) > MOST_URI or not isinstance(protocol, str):
        raise ValueError(f"expected a URI and a protocol, got {uri!r:.80} and {protocol!r:.20}")
    if len(links) > MOST_LINKS:
        raise ValueError(f"a site with {len(links)} links")
    first = (_number(site), _number(epoch), _number(sequence))
    return SiteMember(
        *first, uri, protocol, _number(least), _number(most), tuple(map(_number, links))
    )
