"""A simulated world: a heap of events that one process, the log or a client takes."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any, Final

from ingest.session.shard.memory_shards import MemoryShardStore
from mqlake.records.sessions import NEVER_EXPIRES
from mqlake.records.shards import Run
from tests.ingest.session.simulation.clients import Client
from tests.ingest.session.simulation.gateway import Process
from tests.ingest.session.simulation.invariants import QUIET_MS, Judge
from tests.ingest.session.simulation.lease import TICK_MS
from tests.ingest.session.simulation.log import (
    COMPACTION_LAG_MS,
    START_MS,
    Log,
    Message,
    SimHeartbeat,
)
from tests.ingest.session.simulation.node import LOOK_AGAIN_MS, Node
from tests.ingest.session.simulation.schedule import CLIENTS, LATE_MS, Fault, Schedule, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.session.shard.effects import Find, ShardRecord
    from ingest.session.shard.entries import ShardStore


class World:
    """Runs one schedule.

    Args:
        schedule: What happens.
        transcript: Takes a line for each thing that happens; None to be fast.
    """

    process_type: type[Process] = Process

    def __init__(self, schedule: Schedule, transcript: list[str] | None = None) -> None:
        self.schedule = schedule
        self.transcript = transcript
        self.random = Random(schedule.seed)
        self.now = 0
        self.events = 0
        self.sessions = 0
        self.messages = 0
        self._queue: list[tuple[int, int, Any, Callable[..., object], Any]] = []
        self._pushed = 0
        self._faults = list(reversed(schedule.faults))
        self.logs = [Log() for _ in range(schedule.shards)]
        self.inbound: list[Message] = []
        self.heartbeats: list[SimHeartbeat] = []
        self.processes: list[Process] = []
        # Of which everybody sees that they have ended.
        self.ended: set[Run] = set()
        self.judge = Judge(self)
        self.fallen_behind = 0
        self.answer_ms = schedule.answer_ms
        self.clients = [Client(self, n, f"c{n}", f"u{n}") for n in range(CLIENTS)]
        self.clients += [Client(self, CLIENTS + n, f"c{n}", "stranger") for n in range(CLIENTS)]
        self.names = 0

    def open_store(self) -> ShardStore:
        """Return where a process keeps what it reads of a shard."""
        return MemoryShardStore()

    def note(self, who: object, what: str) -> None:
        if self.transcript is not None:
            self.transcript.append(f"{self.now:>7} ms {self.events:>4}  {who!s:<8} {what}")

    def new_session(self) -> str:
        """Return an identifier for a session."""
        self.sessions += 1
        return f"s{self.sessions}"

    def new_name(self, kind: str) -> str:
        """Return a name for a message."""
        self.messages += 1
        return f"{kind}{self.messages}"

    def at(
        self, delay: int, call: Callable[..., object], *args: Any, process: Node | None = None
    ) -> None:
        self._pushed += 1
        heappush(self._queue, (self.now + delay, self._pushed, process, call, args))

    def run(self) -> None:
        """Run the schedule and a quiet time behind it.

        Raises:
            Violation: A promise is broken.
        """
        try:
            self._run()
        finally:
            self.end()

    def end(self) -> None:
        """Let nothing go on."""
        for process in self.processes:
            process.discard_works()

    def _run(self) -> None:
        schedule = self.schedule
        for slot in range(schedule.gateways):
            self.start_process(slot, f"g{slot}", self.random.randrange(TICK_MS))
        for step in schedule.steps:
            self.at(step.at_ms, self.do, step)
        last = max((step.at_ms for step in schedule.steps), default=0)
        self.run_until(last + 100)
        self.end_faults()
        self.run_until(self.now + QUIET_MS)
        alive = [process.slot for process in self.processes if process.is_alive] or [0]
        for client in self.clients:
            if client.connections:
                slot = self.random.choice(alive)
                options = Step(self.now, "final", client.number, slot, expiry=NEVER_EXPIRES)
                client.connect(options)
        self.run_until(self.now + 5_000)
        self.judge.at_the_end()

    def end_faults(self) -> None:
        """Let all that still goes wrong be over, and one gateway at least be there."""
        self._faults.clear()
        self.answer_ms = 0
        for process in self.processes:
            process.cut_off_until = process.mute_until = process.slow_until = 0
            process.unheard_until = process.unsure_until = process.stopped_until = 0
            process.times_out_until = 0
            process.thaw_by(self.now + 500)
        if not any(process.is_alive for process in self.processes):
            self.restart(0)

    def run_until(self, end: int) -> None:
        queue = self._queue
        while queue and queue[0][0] <= end:
            at, number, process, call, args = heappop(queue)
            self.now = at
            if process is not None:
                if not process.is_alive:
                    continue
                if process.paused_until > at:
                    later = min(process.paused_until, at + LOOK_AGAIN_MS)
                    heappush(queue, (later, number, process, call, args))
                    continue
                if call.__name__ != "tick":
                    self.events += 1
                    if self._faults and self.events >= self._faults[-1].event:
                        heappush(queue, (at, number, process, call, args))
                        self.strike(self._faults.pop(), process)
                        continue
            call(*args)
        self.now = end

    # Faults

    def strike(self, fault: Fault, process: Process) -> None:
        if fault.gateway is not None:
            of_slot = [p for p in self.processes if p.slot == fault.gateway and p.is_alive]
            if not of_slot:
                return
            process = of_slot[-1]
        self.note(process, f"FAULT {fault.what} {fault.ms}")
        until = self.now + fault.ms
        if fault.what == "crash":
            self.crash(process)
        elif fault.what == "step":
            process.clock.ahead_ms += fault.ms
        elif fault.what == "late":
            process.late_until = until
        elif fault.what == "freeze":
            process.freeze_until(until)
        else:
            setattr(process, _UNTIL[fault.what], until)

    def crash(self, process: Process) -> None:
        self.note(process, "is gone")
        was_leased = process.is_leased
        process.is_alive = False
        if self.schedule.is_one_machine:
            self.ended.add(process.me)
        process.lost_after = self.now + self.random.choice((0, 2, LATE_MS))
        for client in self.clients:
            for connection in client.connections:
                if connection.process is process and not connection.is_closed:
                    connection.is_closed = True
                    connection.closed_at = self.now
                    connection.is_abandoned |= not was_leased
                    self.at(1, client.lost, connection)
        process.discard_works()

    def start_process(self, slot: int, name: str, delay: int) -> None:
        if any(process.slot == slot and process.is_alive for process in self.processes):
            return
        run = Run(name, f"i{len(self.processes)}")
        process = self.process_type(self, slot, run, delay)
        self.processes.append(process)
        self.note(process, f"starts in slot {slot}")

    def restart(self, slot: int) -> None:
        """Start a gateway where one has died: at once, for that is certain, or under a new name."""
        before = [process for process in self.processes if process.slot == slot][-1]
        if before.is_alive:
            return
        name = before.me.gateway
        if self.random.random() < 0.3:
            self.names += 1
            name = f"n{self.names}"
        self.at(LATE_MS + 300, self.start_process, slot, name, 10)

    # What the log does

    def append(self, process: Process, shard: int, record: ShardRecord) -> int:
        offset = self.logs[shard].append(self.now, shard, record)
        if self.transcript is not None:
            value = "tombstone" if record.value is None else record.value.decode()
            stamp = ",".join(f"{k}={v.decode()}" for k, v in record.headers[2:])
            self.note(process, f"#{offset} {record.key.decode()} [{stamp}] {value}")
        for one in self.processes:
            if one.is_alive:
                one.wake(shard)
        return offset

    def publish(self, message: Message) -> int:
        self.note("inbound", f"#{len(self.inbound)} {message}")
        self.inbound.append(message)
        self.judge.published(message)
        for process in self.processes:
            if process.is_alive:
                process.wake("inbound")
        if message.kind == "message":
            for client in self.clients:
                if client.session_id is not None and client.subscribed == client.session_id:
                    client.expected.append(message)
        return len(self.inbound) - 1

    def told(self, gateway: str, action: str, value: bytes) -> int:
        for process in self.processes:
            if process.is_alive and process.me.gateway == gateway:
                delay = self.random.choice((1, 1, 2, 3))
                self.at(delay, process.take_control, action, value, process=process)
        return 0

    def find(self, effect: Find) -> dict[bytes, int]:
        """Return the exchanges that the log has, and where."""
        starts = {one.exchange: one.starts[0] for one in effect.searches}
        return {
            message.exchange: offset
            for offset, message in enumerate(self.inbound)
            if offset >= starts.get(message.exchange, len(self.inbound))
        }

    # What clients do

    def do(self, step: Step) -> None:
        self.note("step", str(step))
        client = self.clients[step.who]
        connection = client.connection
        if step.what == "connect":
            client.connect(step)
        elif step.what == "message":
            self.publish(Message("message", self.new_name("m"), step.qos))
        elif step.what == "restart":
            self.restart(step.who)
        elif step.what == "compact":
            for log in self.logs:
                log.records = log.compacted(START_MS + self.now - COMPACTION_LAG_MS)
        elif connection is None or not client.is_connected or step.what == "wait":
            return
        elif step.what == "publish":
            client.publish()
        else:
            is_asked = step.what == "disconnect"
            connection.asked_to_disconnect = is_asked
            client.hang_up(is_asked=is_asked)


_UNTIL: Final = {
    "pause": "paused_until",
    "cut_off": "cut_off_until",
    "mute": "mute_until",
    "unheard": "unheard_until",
    "slow": "slow_until",
    "unsure": "unsure_until",
    "stopped": "stopped_until",
    "time_out": "times_out_until",
}
