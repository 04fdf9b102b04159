"""Federations that find their own links keep their promises and heal; each planted defect shows.

More of them: `MQLAKE_SIMULATIONS=10000 bin/test tests/ingest/federation -k in_time`.
"""

from collections.abc import Callable
from typing import Any, Final

import pytest

from ingest.federation.brokers.meshes import Mesh
from ingest.federation.overlay import Overlay
from ingest.federation.overlay_events import NeighbourState, OverlayEvent
from ingest.federation.overlay_map import OverlayMap
from tests.ingest.federation.brokers.healing import HEAL_SECONDS, heal
from tests.ingest.federation.brokers.simulation import Violation
from tests.ingest.simulations import simulations_wanted

SAMPLE: Final = 20
FOUND: Final = (2, 95)
"""Federations that have shown faults of the protocol."""
SEEDS: Final = (*FOUND, 132, *range(30))
"""Federations in one of which a defect has to show."""


def test_random_federations_heal_in_time_and_keep_their_promises() -> None:
    wanted = simulations_wanted(SAMPLE)
    healed = [heal(seed).healed_after for seed in range(wanted)]
    assert sum(one is not None and one > 0 for one in healed) > wanted / 10, "nothing was broken"
    assert all(one is not None and one <= HEAL_SECONDS for one in healed)


@pytest.mark.parametrize("seed", FOUND)
def test_a_fault_that_was_found_stays_mended(seed: int) -> None:
    heal(seed)


Patch = Callable[[pytest.MonkeyPatch], None]


def room_for_all(patch: pytest.MonkeyPatch) -> None:
    """A site takes whoever asks."""
    patch.setattr(Overlay, "_make_room", lambda *_: True)


def room_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """A site that is full drops no link, whoever asks."""
    patch.setattr(Overlay, "_drop", lambda *_: False)


def any_link_goes(patch: pytest.MonkeyPatch) -> None:
    """A link is dropped whether there is another way or not."""
    patch.setattr(OverlayMap, "is_spare", lambda *_: True)


def all_seem_there(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether there is a way to a site."""
    patch.setattr(OverlayMap, "reachable", lambda self: {self._site, *self.members})


def silence_is_fine(patch: pytest.MonkeyPatch) -> None:
    """A neighbour that is not heard any more stays one."""
    patch.setattr(Overlay, "_expire", lambda *_: None)


def told_of_nobody(patch: pytest.MonkeyPatch) -> None:
    """Who comes is not told who there is."""
    patch.setattr(Overlay, "_tell_map", lambda *_: None)


def news_stay_here(patch: pytest.MonkeyPatch) -> None:
    """What a site hears of others it tells nobody."""
    patch.setattr(Overlay, "_tell_all", lambda *_, **__: None)


def asked_once(patch: pytest.MonkeyPatch) -> None:
    """A site that did not answer is never asked again."""
    enter = Overlay._enter

    def enter_for_ever(
        self: Overlay, site: int, peer: Any, event: OverlayEvent, now: float
    ) -> None:
        enter(self, site, peer, event, now)
        if peer.state is NeighbourState.KNOWN and event is OverlayEvent.LOSE:
            peer.next_at = float("inf")

    patch.setattr(Overlay, "_enter", enter_for_ever)


def full_and_silent(patch: pytest.MonkeyPatch) -> None:
    """A site without room for those that are apart keeps to itself whom they could ask."""
    join = Overlay._join

    def join_with_room(self: Overlay, sites: Any, now: float) -> None:
        if self._has_room():
            join(self, sites, now)

    patch.setattr(Overlay, "_join", join_with_room)


def late_wishes_unheard(patch: pytest.MonkeyPatch) -> None:
    """That a site which comes late has wanted messages for long changes nothing."""
    patch.setattr(Mesh, "_hear_wanted", lambda *_: None)


DEFECTS: Final = (
    room_for_all,
    room_for_nobody,
    any_link_goes,
    all_seem_there,
    silence_is_fine,
    told_of_nobody,
    news_stay_here,
    asked_once,
    full_and_silent,
    late_wishes_unheard,
)


@pytest.mark.parametrize("plant", DEFECTS, ids=lambda plant: plant.__name__)
def test_a_planted_defect_is_found(plant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in SEEDS:
        try:
            heal(seed)
        except Violation:
            return
    pytest.fail(f"{plant.__doc__} That showed in none of {len(SEEDS)} federations.")
