"""Subscriptions with records of their own in a simulated world: none is lost, none comes back.

The world is that of `simulation`; its clients subscribe and unsubscribe too, and each of these
subscriptions has a record of its own. Only the host is test code: shards, owners and holders are
the real ones.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from mqlake.records.sessions import (
    StoredSubscription,
    decode_session,
    encode_subscription_record,
    subscription_key,
)
from tests.ingest.session.simulation.gateway import Process
from tests.ingest.session.simulation.invariants import Judge, Violation
from tests.ingest.session.simulation.schedule import CLIENTS, Schedule, Step, with_freeze
from tests.ingest.session.simulation.schedule import make_schedule as make_plain_schedule
from tests.ingest.session.simulation.search import run
from tests.ingest.session.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingest.session.holder_host import Grant
    from mqlake.records.shards import Key
    from tests.ingest.session.simulation.clients import Client, Connection
    from tests.ingest.session.simulation.opening import Opening
    from tests.ingest.session.simulation.serving import Serving

FILTERS: Final = ("f0", "f1", "f2")
_GAPS_MS: Final = (0, 1, 3, 8, 40, 500, 3_000)


def make_schedule(seed: int) -> Schedule:
    """Return a schedule of the plain world in which clients subscribe and unsubscribe."""
    plain, random = make_plain_schedule(seed), Random(f"subscriptions {seed}")
    steps: list[Step] = []
    for step in plain.steps:
        steps.append(step)
        for _ in range(random.choice((0, 1, 2, 3))):
            at_ms = step.at_ms + random.choice(_GAPS_MS)
            what = random.choice(("subscribe", "subscribe", "unsubscribe"))
            who = step.who if step.what == "connect" else random.randrange(CLIENTS)
            steps.append(Step(at_ms, what, who, random.randrange(len(FILTERS))))
    return replace(plain, steps=tuple(steps))


@dataclass(slots=True)
class Known:
    """What a client knows of its subscriptions to one filter in one session."""

    last_sent: str = ""
    may_have: bool = False
    """It has asked for it, and no UNSUBACK came since."""
    must_have: bool = False
    """SUBACK came, and it has not asked for its end since."""


class Filters:
    """The subscriptions of a session that have records of their own."""

    def __init__(self, serving: Serving, grant: Grant | None) -> None:
        self.serving = serving
        self.names: set[str] = set()
        if grant is not None:
            self.names.update(row["filter"] for row in grant.subscriptions)

    def take_add(self, _packet_id: int, name: str) -> None:
        self.names.add(name)
        self.change("add", name)

    def take_remove(self, _packet_id: int, name: str) -> None:
        self.names.discard(name)
        self.change("remove", name)

    def change(self, what: str, name: str) -> None:
        serving, connection = self.serving, self.serving.connection
        process, world = serving.process, serving.world
        assert isinstance(world, SubscribingWorld)

        def answer() -> None:
            if connection is not None and not connection.is_closed:
                world.at(1, world.answered, connection, what, name)

        if serving.is_written:
            self.write(name, lambda _: process.once_counted(answer))
        else:
            process.once_counted(answer)

    def write(self, name: str, report: Callable[[int], None]) -> None:
        serving, value = self.serving, None
        if name in self.names:
            subscription = StoredSubscription(name, 1)
            value = encode_subscription_record(serving.session_id, subscription)
        assert serving.epoch is not None, serving.key
        key = subscription_key(*serving.key, name)
        serving.process.append_session(key, value, serving.key, serving.epoch, report)


class SubscribingProcess(Process):
    """A gateway whose clients have subscriptions with records of their own."""

    def __init__(self, *args: Any) -> None:
        self.filters: dict[Serving, Filters] = {}
        self._grants: dict[Key, Grant | None] = {}
        super().__init__(*args)

    def begin(self, key: Key, opening: Opening, grant: Grant | None) -> None:
        self._grants[key] = grant
        super().begin(key, opening, grant)

    def add(self, serving: Serving) -> None:
        self.filters[serving] = Filters(serving, self._grants.pop(serving.key))
        super().add(serving)

    def part_for(self, serving: Serving, what: str) -> object:
        if what in {"add", "remove"}:
            return self.filters[serving]
        return super().part_for(serving, what)

    def rewrite_subscription(self, key: Key, topic_filter: str) -> None:
        serving = self.serving.get(key) or self.leaving.get(key)
        if serving is not None:
            self.filters[serving].write(topic_filter, lambda _: None)


class SubscribingJudge(Judge):
    """Knows what clients were told of their subscriptions."""

    def connack(self, connection: Connection, *, is_present: bool) -> None:
        super().connack(connection, is_present=is_present)
        world, process = self.world, connection.process
        assert isinstance(world, SubscribingWorld)
        assert isinstance(process, SubscribingProcess)
        client = connection.client
        has = process.filters[process.serving[client.key]].names
        for name in FILTERS:
            known = world.known[client.client_id, connection.session_id, name]
            if known.must_have and name not in has:
                raise Violation("nothing is missing", f"{name} on {connection}")
            if name in has and not known.may_have:
                raise Violation("nothing comes back", f"{name} on {connection}")

    def at_the_end(self) -> None:
        super().at_the_end()
        for process in self.world.processes:
            if process.is_alive:
                for shard in process.shards:
                    for client in self.world.clients:
                        entry = shard.store.get(client.key)
                        session = None if entry is None else entry.session
                        current = None if session is None else decode_session(session).session_id
                        if left := shard.store.subscriptions(client.key, "", 9, but_of=current):
                            raise Violation("liveness", f"left of {client.client_id}: {left}")


class SubscribingWorld(World):
    """A world whose clients subscribe and unsubscribe."""

    process_type = SubscribingProcess

    def __init__(self, schedule: Schedule, transcript: list[str] | None = None) -> None:
        super().__init__(schedule, transcript)
        self.judge = SubscribingJudge(self)
        self.known: defaultdict[tuple[str, str, str], Known] = defaultdict(Known)

    def do(self, step: Step) -> None:
        if step.what not in {"subscribe", "unsubscribe"}:
            super().do(step)
            return
        client = self.clients[step.who]
        connection = client.connection
        if connection is None or not client.is_connected:
            return
        name = FILTERS[step.gateway]
        self.note("step", f"{step} {name}")
        known = self._known(client, connection, name)
        known.last_sent = "add" if step.what == "subscribe" else "remove"
        if known.last_sent == "add":
            known.may_have = True
        else:
            known.must_have = False
        client.packet(connection, known.last_sent, 0, name)

    def answered(self, connection: Connection, what: str, name: str) -> None:
        """Let a client take SUBACK or UNSUBACK."""
        client = connection.client
        if client.connection is not connection:
            return
        self.note(client.client_id, f"is answered {what} {name}")
        known = self._known(client, connection, name)
        if known.last_sent == what:
            known.may_have = known.must_have = what == "add"

    def _known(self, client: Client, connection: Connection, name: str) -> Known:
        return self.known[client.client_id, connection.session_id, name]


def frozen(seed: int) -> Schedule:
    """Return the schedule of a seed in which a machine is frozen."""
    return with_freeze(make_schedule(seed))


def search(
    seeds: Iterable[int], make: Callable[[int], Schedule] = make_schedule
) -> tuple[int, Violation] | None:
    """Return the first seed whose schedule breaks a promise, and which."""
    for seed in seeds:
        found = run(make(seed), SubscribingWorld)
        if found is not None:
            return seed, found
    return None
