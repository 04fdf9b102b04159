"""What must not be, by name: `Judge` sees what clients see and what the log has."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from ingest.session.ownership import Shard
from ingest.session.shard.memory_shards import MemoryShardStore
from mqlake.records.shards import NO_EPOCH, Run, claim_key, decode_claim
from tests.ingest.session.simulation.log import COMPACTION_LAG_MS, START_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.ingest.session.simulation.clients import Client, Connection
    from tests.ingest.session.simulation.log import Message
    from tests.ingest.session.simulation.serving import Serving
    from tests.ingest.session.simulation.world import World

QUIET_MS: Final = 20_000
"""A lease and its margin, a tick each to notice and to act, and what is in between."""


class Violation(AssertionError):  # noqa: N818 - what is broken, not how
    """A promise is broken.

    Attributes:
        name: Of the invariant.
    """

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


class Judge:
    """Says what must not be."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dead_sessions: set[str] = set()
        self.begun: dict[str, set[str]] = {}
        self.created: dict[str, Connection] = {}
        self.last_expiry: dict[str, int] = {}
        self.served: dict[str, list[Connection]] = {}
        """By client, in the order of CONNACK."""
        self.by_exchange: dict[bytes, Connection] = {}
        self.wills: Counter[bytes] = Counter()
        self.with_will: set[Connection] = set()
        """Whose will was published."""

    def connack(self, connection: Connection, *, is_present: bool) -> None:
        client, sid = connection.client, connection.session_id
        for process in self.world.processes:
            serving = process.serving.get(client.key)
            if (
                process is not connection.process
                and serving is not None
                and serving.connection is not None
                and serving.connection.is_acked
                and not serving.connection.is_closed
                and process.serves(serving)
            ):
                raise Violation("one holder", f"{connection} while {serving.connection}")
        must = client.session_id
        for other in self._with_identifier_of(client):
            if other is not client and other.session_id is not None:
                raise Violation("whose session", f"{connection} while {other.session_id} is there")
        if is_present:
            if self.created[sid].is_told_no:
                raise Violation("no means no", f"{sid} of {self.created[sid]} is there")
            if self.created[sid] is connection:
                raise Violation("session present", f"{sid} is new, {connection}")
            if sid in self.dead_sessions or self.last_expiry.get(sid) == 0:
                raise Violation("session present", f"{sid} had ended, {connection}")
            if must not in {None, sid}:
                raise Violation("session present", f"{sid} instead of {must}, {connection}")
        elif must is not None:
            raise Violation("nothing is missing", f"{must} is gone, {connection}")
        else:
            self._judge_end(connection)
            before = self.begun.setdefault(client.client_id, set())
            self.dead_sessions |= before - {sid}
            before.add(sid)
        self.last_expiry[sid] = connection.options.expiry
        self.served.setdefault(client.client_id, []).append(connection)

    def _judge_end(self, connection: Connection) -> None:
        """A session that is not there has not ended before its time by the log."""
        last = self._last_served(connection.client, but=connection)
        if last is None or connection.options.clean:
            return
        lives_ms = last.options.expiry * 1000
        is_gone = last.is_closed and not last.is_abandoned
        if is_gone and self.world.now < last.closed_at + lives_ms:
            raise Violation("time is the log's", f"{last.session_id} ended early, {connection}")

    def _last_served(self, client: Client, but: Connection | None = None) -> Connection | None:
        """Return which connection had the session last; None if one may have had it unseen.

        That is another order than that in which they began: one may be on its way for long.
        """
        served = self.served.get(client.client_id)
        is_seen = all(
            one.is_acked or one.is_refused
            for each in self._with_identifier_of(client)
            for one in each.connections
            if one is not but
        )
        return served[-1] if served and is_seen else None

    def _with_identifier_of(self, client: Client) -> list[Client]:
        return [one for one in self.world.clients if one.client_id == client.client_id]

    def told_no(self, connection: Connection) -> None:
        """Judge that a connection is refused: by then nothing may have come of it."""
        if connection in self.with_will:
            raise Violation("no means no", f"{connection}, whose will was published")

    def let_go(self, serving: Serving) -> None:
        """Judge that a connection is ended because somebody has claimed its session."""
        process, number = serving.process, serving.process.shard_number(serving.key)
        shard, log = process.shards[number], self.world.logs[number]
        if not serving.is_written and not (shard.is_active and process.is_leased):
            return  # it may have been begun without a record: its shard changes its owner
        epoch = NO_EPOCH if serving.epoch is None else serving.epoch
        claims = [
            decode_claim(one.value, one.offset, one.timestamp_ms)
            for one in log.records
            if one.key == claim_key(*serving.key) and one.value is not None and one.offset > epoch
        ]
        if not any(one.principal == serving.client.user for one in claims):
            raise Violation("whose session", f"{serving.last_connection} is ended for another user")

    def published(self, message: Message) -> None:
        if message.kind != "will":
            return
        self.wills[message.exchange] += 1
        connection = self._with_will(message)
        self.with_will.add(connection)
        if connection.is_told_no:
            raise Violation("no means no", f"a will of {connection}")
        if self.wills[message.exchange] > 1:
            raise Violation("a will once", f"twice that of {connection}")
        if connection.has_disconnected:
            raise Violation("a will once", f"after DISCONNECT on {connection}")
        delay_s = min(connection.options.will_delay or 0, connection.options.expiry)
        is_last = connection is self._last_served(connection.client)
        is_gone = connection.is_closed and not connection.is_abandoned
        if is_last and is_gone and self.world.now < connection.closed_at + delay_s * 1000:
            raise Violation("time is the log's", f"will of {connection} early")
        for other in connection.client.connections:
            is_served = other.is_acked and not other.is_closed and other.process.is_leased
            if other.number >= connection.number and is_served:
                raise Violation("a will once", f"that of {connection} while {other} is served")

    def _with_will(self, message: Message) -> Connection:
        """Return whose will it is: also of one that was settled before it knew its session."""
        if message.exchange not in self.by_exchange:
            sid, _, rest = message.exchange.partition(b"/")
            client = self.created[sid.decode()].client
            self.by_exchange[message.exchange] = next(
                one
                for each in self._with_identifier_of(client)
                for one in each.connections
                if one.exchange.partition(b"/")[2] == rest
            )
        return self.by_exchange[message.exchange]

    def at_the_end(self) -> None:
        """Judge what must have come true in a quiet time."""
        world = self.world
        alive = {process.me for process in world.processes if process.is_alive}
        for process in world.processes:
            if not process.is_alive:
                continue
            for shard in process.shards:
                if shard.store.waiting():
                    raise Violation("liveness", f"claims wait at {process}")
                if dead := set(shard.store.holders()) - alive:
                    raise Violation("liveness", f"dead runs hold sessions: {dead}")
        for number in range(world.schedule.shards):
            owners = [p for p in world.processes if p.is_alive and p.shards[number].is_active]
            if len(owners) != 1:
                raise Violation("liveness", f"{len(owners)} owners of shard {number}")
        for client in world.clients:
            connection = client.connection
            was_asked = connection is not None and connection.options.what == "final"
            served = [one for one in self._with_identifier_of(client) if one.is_connected]
            is_anothers = connection is None or connection.is_refused
            if was_asked and not client.is_connected and not (served and is_anothers):
                raise Violation("liveness", f"no CONNACK on {connection}")
            self._judge_messages(client)
            self._judge_wills(client)
        self._judge_log()

    def _judge_messages(self, client: Client) -> None:
        for message in client.expected:
            if not client.received[client.session_id or "", message.name]:
                raise Violation("nothing is missing", f"{message.name} to {client.client_id}")
        stored = Counter(one.name for one in self.world.inbound if one.kind == "published")
        if twice := [name for name, count in stored.items() if count > 1]:
            raise Violation("exactly once", f"{twice} of {client.client_id} stored twice")
        if lost := [name for name in client.published if not stored[name]]:
            raise Violation("nothing is missing", f"{lost} of {client.client_id}")

    def _judge_wills(self, client: Client) -> None:
        for connection in client.connections:
            delay_s = connection.options.will_delay
            if (
                delay_s is None
                or not connection.is_acked
                or not connection.is_closed
                or connection.asked_to_disconnect
                or self.wills[connection.exchange]
            ):
                continue
            until = connection.closed_at + delay_s * 1000 + QUIET_MS
            is_later = any(other.number > connection.number for other in client.connections)
            if self.world.now > until and not (delay_s and is_later):
                raise Violation("a will once", f"that of {connection} was not published")

    def _judge_log(self) -> None:
        """A fresh reader, of the whole log or of what compaction leaves, knows what others do."""
        world = self.world
        for number, log in enumerate(world.logs):
            owner = next(p for p in world.processes if p.is_alive and p.shards[number].is_active)
            expected = _state(owner.shards[number], world.clients)
            copies = {
                "as it is": log.records,
                "compacted": log.compacted(START_MS + world.now - COMPACTION_LAG_MS),
                "compacted to the end": log.compacted(START_MS + world.now),
            }
            for name, records in copies.items():
                fresh = Shard(number, MemoryShardStore(), Run("", "fresh"), lambda _, __: None)
                for record in records:
                    fresh.apply(record)
                if (found := _state(fresh, world.clients)) != expected:
                    raise Violation("one order", f"{name}: {found}, expected {expected}")

    def delivered(self, connection: Connection) -> None:
        """Judge a message that leaves on a connection."""
        if connection.is_hung_up:
            return
        for other in connection.client.connections[connection.number + 1 :]:
            serving = other.process.serving.get(connection.client.key)
            if (
                other.process is not connection.process
                and other.is_acked
                and serving is not None
                and serving.connection is other
                and not other.is_closed
                and other.process.serves(serving)
            ):
                raise Violation("one holder", f"a message on {connection} while {other}")

    def received(self, client: Client, sid: str, message: Message, *, dup: bool) -> None:
        client.received[sid, message.name] += 1
        is_repeated = client.received[sid, message.name] > 1
        if message.qos == 2 and is_repeated:
            raise Violation("exactly once", f"{message.name} twice to {client.client_id}")
        if is_repeated and not dup:  # [MQTT5-3.3.1-1] [MQTT311-3.3.1-1]
            raise Violation("repeated with DUP", f"{message.name} to {client.client_id}")


def _state(shard: Shard, clients: Sequence[Client]) -> dict[str, object]:
    states: dict[str, object] = {"owner": shard.owner}
    for client in clients:
        entry = shard.store.get(client.key)
        if entry is None or (entry.session is None and entry.holder is None):
            continue
        states[client.client_id] = (
            entry.epoch,
            entry.holder,
            entry.session,
            entry.claim,
            shard.store.progress(client.key),
            {name: row.value for name, row in shard.store.subscriptions(client.key, "", 100)},
        )
    return states
