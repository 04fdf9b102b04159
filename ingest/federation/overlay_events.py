"""States and events between two sites of an overlay, and the bounds of one: data, no code.

`TRANSITIONS` is the whole automaton of one other site as this one sees it (`overlay` goes by it);
`docs/federation.md` draws it from here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from ingest.federation.overlay_packets import Stance


class NeighbourState(Enum):
    """State of another site, as this one sees it."""

    KNOWN = "known"
    ASKED = "asked"
    """It is to say whether there will be a link."""
    GRANTED = "granted"
    """It has asked, and there is one as soon as it says so too."""
    LINKED = "linked"


class OverlayEvent(Enum):
    """Event between two sites."""

    ASK = "ask"
    """This one wants a link."""
    GRANT = "grant"
    """The other one wants one, and there is room."""
    AGREE = "agree"
    """The other one says that there is one."""
    REFUSE = "refuse"
    """The other one says that there is none."""
    LOSE = "lose"
    """It is not heard, or cannot be reached."""
    DROP = "drop"
    """This one has no room for it any more."""


TRANSITIONS: Final[Mapping[NeighbourState, Mapping[OverlayEvent, NeighbourState]]] = {
    NeighbourState.KNOWN: {
        OverlayEvent.ASK: NeighbourState.ASKED,
        OverlayEvent.GRANT: NeighbourState.GRANTED,
    },
    NeighbourState.ASKED: {
        OverlayEvent.GRANT: NeighbourState.GRANTED,
        OverlayEvent.AGREE: NeighbourState.LINKED,
        OverlayEvent.REFUSE: NeighbourState.KNOWN,
        OverlayEvent.LOSE: NeighbourState.KNOWN,
    },
    NeighbourState.GRANTED: {
        OverlayEvent.AGREE: NeighbourState.LINKED,
        OverlayEvent.REFUSE: NeighbourState.KNOWN,
        OverlayEvent.LOSE: NeighbourState.KNOWN,
    },
    NeighbourState.LINKED: {
        OverlayEvent.REFUSE: NeighbourState.KNOWN,
        OverlayEvent.LOSE: NeighbourState.KNOWN,
        OverlayEvent.DROP: NeighbourState.KNOWN,
    },
}

STANCES: Final = {
    NeighbourState.KNOWN: Stance.NONE,
    NeighbourState.ASKED: Stance.ASK,
    NeighbourState.GRANTED: Stance.LINKED,
    NeighbourState.LINKED: Stance.LINKED,
}
COUNTED: Final = (NeighbourState.GRANTED, NeighbourState.LINKED)
"""States of which at most `most` sites are."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds that a site keeps to; durations in seconds."""

    least: int = 3
    most: int = 6
    beacon_interval: float = 5.0
    most_sites: int = 256
    forget_seconds: float = 86_400.0


class WayUp(NamedTuple):
    """Words can be sent to a site."""

    site: int


class WayDown(NamedTuple):
    """They cannot any more."""

    site: int


class Away(NamedTuple):
    """Its broker says that its federator is not there any more; the way is."""

    site: int


class LinkChange(NamedTuple):
    """A link has come or gone."""

    site: int
    event: OverlayEvent
    state: NeighbourState


@dataclass(slots=True)
class OverlayCounters:
    asked: int = 0
    granted: int = 0
    refused: int = 0
    dropped: int = 0
    lost: int = 0
    repeated: int = 0
    """Packets that had come before, or were for another site."""


def diagram() -> Iterator[str]:
    """Yield the lines of the automaton's picture, a Mermaid state diagram."""
    yield "stateDiagram-v2"
    yield f"    [*] --> {NeighbourState.KNOWN.value}"
    for state, events in TRANSITIONS.items():
        for event, after in events.items():
            yield f"    {state.value} --> {after.value}: {event.value}"
