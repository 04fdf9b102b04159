"""Random federations keep their promises; each planted defect breaks one.

`MQLAKE_SIMULATIONS=10000 bin/test tests/ingest/federation/brokers/test_simulation.py -k keep_their`
runs many.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from ingest.federation import envelope
from ingest.federation.brokers import core, events, meshes
from ingest.federation.brokers.chains import Chains
from ingest.federation.brokers.core import Federator
from ingest.federation.brokers.events import SavedSite
from ingest.federation.brokers.meshes import Mesh
from ingest.federation.brokers.neighbours import Neighbourhood
from ingest.federation.brokers.repair import Repair
from ingest.federation.brokers.store import MeshStore
from ingest.federation.packets import Core, Lack
from tests.ingest.federation.brokers.simulation import Violation, run
from tests.ingest.simulations import simulations_wanted

SAMPLE: Final = 60
FOUND: Final = (3207, 3213, 3906, 4213, 4894)
"""Topologies that have shown faults of the protocol."""

SEEDS: Final = (0, 10, 19, 50, 52, 86, 99, *FOUND, *range(100, 200))
"""Topologies in one of which a defect has to show; the first ones show these."""


def test_random_federations_keep_their_promises() -> None:
    packets = 0
    for seed in range(simulations_wanted(SAMPLE)):
        packets += run(seed).packets
    assert packets > SAMPLE * 100


@pytest.mark.parametrize("seed", FOUND)
def test_a_fault_that_was_found_stays_mended(seed: int) -> None:
    run(seed)


def test_a_seed_tells_all_that_happens() -> None:
    first, second = run(17), run(17)
    assert first.packets == second.packets > 0
    assert first.delivered == second.delivered


Patch = Callable[[pytest.MonkeyPatch], None]


def forget_marks(patch: pytest.MonkeyPatch) -> None:
    """Duplicates are not recognised."""
    patch.setattr(Chains, "has_seen", lambda *_: False)


def send_back(patch: pytest.MonkeyPatch) -> None:
    """A message goes back to where it came from, and duplicates are passed on."""
    step = Federator.step

    def pass_on_twice(self: Any, event: Any, now: float) -> None:
        step(self, event, now)
        if isinstance(event, events.PassedOn):
            self._pass_on(event.message, self.targets(event.message.topic))

    patch.setattr(Federator, "step", pass_on_twice)


def only_upwards(patch: pytest.MonkeyPatch) -> None:
    """Messages go to parents, never to children of a core."""
    patch.setattr(Mesh, "targets", lambda self: set(self.parents))


def first_mesh_only(patch: pytest.MonkeyPatch) -> None:
    """Of filters that overlap one decides where a message goes."""

    def targets(self: Federator, topic: str) -> set[int]:
        found = self._matching.match(topic)
        return set(found[0].targets()) if found else set()

    patch.setattr(Federator, "targets", targets)


def no_heads(patch: pytest.MonkeyPatch) -> None:
    """Nobody tells how far chains have come: the last message before a quiet time stays lost."""
    patch.setattr(Repair, "_say_head", lambda *_: None)


def no_heads_on_new_edges(patch: pytest.MonkeyPatch) -> None:
    """New parents and children do not tell each other what they hold."""
    patch.setattr(Federator, "edges_changed", lambda *_: None)


def no_order(patch: pytest.MonkeyPatch) -> None:
    """Messages are delivered as they come."""

    kept = Chains.admit

    def deliver_all(self: Chains, message: Any, sender: int, now: float, since: float) -> list[Any]:
        kept(self, message, sender, now, since)
        return [message]

    patch.setattr(Chains, "admit", deliver_all)
    patch.setattr(Chains, "give_up", lambda *_: [])


def nobody_wins(patch: pytest.MonkeyPatch) -> None:
    """Of two cores neither gives way."""
    patch.setattr(Mesh, "_is_better", lambda *_: False)


def core_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A core that is silent, or nowhere to be found, stays the core."""
    patch.setattr(Mesh, "_lose_core", lambda *_: None)


def nothing_buried(patch: pytest.MonkeyPatch) -> None:
    """Old announcements of a dead core bring it back."""
    patch.setattr(Mesh, "_bury", lambda *_: None)


def same_epoch(patch: pytest.MonkeyPatch) -> None:
    """A site that comes back numbers its messages from the beginning, in the same epoch."""
    begin = Federator.__init__

    def begin_again(self: Any, site: int, epoch: int, *arguments: Any, **named: Any) -> None:
        begin(self, site, 1, *arguments, **named)

    patch.setattr(Federator, "__init__", begin_again)


def buffer_in_memory(patch: pytest.MonkeyPatch) -> None:
    """A restart empties what is stored and forgets what was delivered."""
    restore = Federator.restore
    patch.setattr(
        Federator,
        "restore",
        lambda self, saved, now: restore(self, SavedSite(interests=saved.interests), now),
    )


def marks_without_messages(patch: pytest.MonkeyPatch) -> None:
    """A restart remembers what was delivered, not the messages."""
    restore = Federator.restore
    patch.setattr(
        Federator,
        "restore",
        lambda self, saved, now: restore(self, replace(saved, messages=()), now),
    )


def ignore_link_states(patch: pytest.MonkeyPatch) -> None:
    """That a link breaks is not noticed, nor that a neighbour is silent."""
    patch.setattr(Neighbourhood, "_lose", lambda *_: None)


def no_greeting(patch: pytest.MonkeyPatch) -> None:
    """A neighbour that comes is told of no core; it waits for the next announcement."""
    patch.setattr(Mesh, "greet", lambda *_: None)
    patch.setattr(Mesh, "announce", once(Mesh.announce))


def once(announce: Any) -> Any:
    def only_the_first(self: Mesh, out: Any, now: float) -> None:
        if self.next_sequence == 1:
            announce(self, out, now)
        else:
            self.announced_at = now

    return only_the_first


def origin_lost_on_3_1_1(patch: pytest.MonkeyPatch) -> None:
    """On one kind of hop the sender takes the place of the origin."""
    to_mqtt = envelope.to_mqtt

    def lose(message: Any, sender: int, *, prefix: str, protocol_level: int) -> Any:
        if protocol_level < 5:
            message = replace(message, key=message.key._replace(origin=sender))
        return to_mqtt(message, sender, prefix=prefix, protocol_level=protocol_level)

    patch.setattr("tests.ingest.federation.brokers.simulation.to_mqtt", lose)


def holes_are_left(patch: pytest.MonkeyPatch) -> None:
    """What is missing is noticed and not asked for."""
    patch.setattr(Repair, "_ask", lambda *_, **__: None)


def asked_once(patch: pytest.MonkeyPatch) -> None:
    """What a neighbour told of is asked for once; a link that breaks then loses it."""
    fetch = Repair._fetch

    def fetch_once(self: Repair, key: Any, tail: Any, now: float) -> None:
        if tail.asked_at == float("-inf"):
            fetch(self, key, tail, now)

    patch.setattr(Repair, "_fetch", fetch_once)


def nobody_asks_on(patch: pytest.MonkeyPatch) -> None:
    """That a neighbour has nothing is taken for that nobody has."""

    def lack(self: Repair, sender: int, want: Any, wave: Any, _now: float) -> None:
        self._host.say(sender, Lack(want.key, want.upto, wave))

    patch.setattr(Repair, "_take_part", lack)


def nothing_below_marks(patch: pytest.MonkeyPatch) -> None:
    """A site asks for others what is below its own marks, and drops it as a duplicate."""
    patch.setattr(Repair, "is_missing", lambda *_: False)


def store_of_one(patch: pytest.MonkeyPatch) -> None:
    """The store keeps hardly anything."""
    between = MeshStore.between
    patch.setattr(MeshStore, "between", lambda self, *a, **named: between(self, *a, **named)[:0])


def retained_by_arrival(patch: pytest.MonkeyPatch) -> None:
    """The retained message that comes last counts, not the latest one."""
    patch.setattr(core, "order_of", lambda _: 0)


def members_unheard(patch: pytest.MonkeyPatch) -> None:
    """A parent takes no children."""
    patch.setattr(Mesh, "hear_membership", lambda *_: None)


def any_neighbour_is_parent(patch: pytest.MonkeyPatch) -> None:
    """An announcement with an old sequence makes a parent, however far its sender is."""
    hear = Mesh.hear_announcement

    def believe(self: Mesh, sender: int, told: Any, out: Any, now: float) -> None:
        if self.core is not None and told.core.site == self.core.site != self.site:
            newer = Core(told.core.site, told.core.epoch, self.core.sequence + 1)
            told = told._replace(core=newer, distance=0)
        hear(self, sender, told, out, now)

    patch.setattr(Mesh, "hear_announcement", believe)


def subscribers_for_ever(patch: pytest.MonkeyPatch) -> None:
    """What a mesh brings is delivered whether anybody wants it or not."""

    def deliver(self: Federator, message: Any) -> None:
        self._effects.append(events.Deliver(message, False))

    patch.setattr(Federator, "deliver", deliver)


DEFECTS: Final[tuple[Patch, ...]] = (
    forget_marks,
    send_back,
    only_upwards,
    first_mesh_only,
    no_heads,
    no_heads_on_new_edges,
    no_order,
    nobody_wins,
    core_for_ever,
    nothing_buried,
    same_epoch,
    buffer_in_memory,
    marks_without_messages,
    ignore_link_states,
    no_greeting,
    origin_lost_on_3_1_1,
    holes_are_left,
    asked_once,
    nobody_asks_on,
    nothing_below_marks,
    store_of_one,
    retained_by_arrival,
    members_unheard,
    any_neighbour_is_parent,
    subscribers_for_ever,
)


@pytest.mark.parametrize("plant", DEFECTS, ids=lambda plant: plant.__name__)
def test_a_planted_defect_is_found(plant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in SEEDS:
        try:
            run(seed)
        except (Violation, RecursionError):
            return
    pytest.fail(f"{plant.__doc__} That showed in none of {len(SEEDS)} topologies.")


def test_the_automaton_knows_every_state_and_event() -> None:
    assert set(meshes.TRANSITIONS) == set(meshes.MeshState)
    assert {event for events in meshes.TRANSITIONS.values() for event in events} == set(
        meshes.MeshEvent
    )
