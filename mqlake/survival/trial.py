"""One trial: messages flow, a fault strikes in the middle, and every message is looked at."""

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from mqlake.errors import OperationalError
from mqlake.local.testing import LocalSystem
from mqlake.records import BARRIER_KEY_PREFIX, INBOUND
from mqlake.survival.clients import Attendant, ProvingClient, end_session
from mqlake.survival.faults import Fault, Target
from mqlake.survival.flows import Flow, MessageFlow, RetainedFlow, ShareFlow, WillFlow
from mqlake.survival.ledger import RetainedVerdict, Sent, Verdict, WillVerdict

MESSAGES: Final = 5_000
STRUCK_AT: Final = (0.2, 0.8)
"""The fault comes somewhere between these, of the messages that flow beside its own time."""

WATCH_SECONDS: Final = 14.0
"""So long after a fault has begun wills are waited for which should not come."""

UNNOTICED_SECONDS: Final = 1.0
"""How long after the system a client may notice that its connection is over, beside the fault's
own time."""

START_SECONDS: Final = 60.0
SEND_SECONDS: Final = 240.0
"""How long it may take until all is sent and acknowledged, with the fault in between."""

SETTLE_SECONDS: Final = 120.0
"""How long the last of them may take to arrive."""

READ_SECONDS: Final = 60.0
"""How long a partition of the log may take to be read."""

Offsets = dict[int, int]
"""Per partition of the log."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one fault did to one flow."""

    fault: str
    flow: str
    """`qos 1`, `qos 2`, `shared`, `retained` or `wills`."""
    seed: int
    verdict: Verdict | RetainedVerdict | WillVerdict
    recovery_seconds: float
    """From the fault until every client that was connected had been served again; of wills, until
    the last one came."""
    notes: tuple[str, ...] = field(default=())

    @property
    def problems(self) -> tuple[str, ...]:
        return self.verdict.problems + self.notes

    def to_json(self) -> dict[str, Any]:
        """Return what there is to say, flat, for programs."""
        return {
            "fault": self.fault,
            "flow": self.flow,
            "seed": self.seed,
            **asdict(self.verdict),
            "recovery_seconds": round(self.recovery_seconds, 1),
            "problems": list(self.problems),
        }


def run_trial(
    system: LocalSystem,
    name: str,
    fault: Fault,
    levels: Sequence[int],
    seed: int,
    *,
    messages: int = MESSAGES,
    per_second: float,
) -> list[Outcome]:
    """Run messages of all kinds and wills through a system, with a fault in the middle.

    A fault that lasts makes the messages flow slower, so that they flow for as much longer.

    Raises:
        OperationalError: The system does not serve at all, before the fault or long after it.
    """
    chance = random.Random(f"{seed}/{name}")  # noqa: S311 - it has to be repeatable
    ports = [system.mqtt_port + number for number in range(system.gateways)]
    run = f"prove-{name}-{seed}"
    usual_seconds = messages / per_second
    seconds = usual_seconds + fault.seconds
    flows: list[MessageFlow] = [
        Flow(
            f"{run}-q{qos}",
            ports,
            qos,
            seed,
            messages=messages,
            per_second=messages / seconds,
            moves=fault.moves,
        )
        for qos in levels
    ]
    flows.append(ShareFlow(f"{run}-s", ports, seed, seconds=seconds, moves=fault.moves))
    flows.append(RetainedFlow(f"{run}-r", ports, seed, seconds=seconds, moves=fault.moves))
    wills = WillFlow(f"{run}-w", ports, seed, moves=fault.moves)
    total = sum(flow.total for flow in flows)
    strike_at = round(chance.uniform(*STRUCK_AT) * total * usual_seconds / seconds)
    gateway = f"gateway-{chance.randint(1, system.gateways)}"
    # Looked for now: that takes the processor, and the clients need it later.
    target = Target(system, gateway, fault.find(system, gateway))
    starts = log_ends(system.state().bootstrap_servers)
    subscribers = [one for flow in flows for one in flow.subscribers]
    attendant = Attendant(
        [*(client for flow in flows for client in flow.clients), *wills.clients],
        [flow.step for flow in flows],
    )
    attendant.start()
    holds = attendant.holds
    try:
        for one in (*subscribers, wills.observer):
            one.come()
        if not holds(
            lambda: all(one.is_subscribed for one in (*subscribers, wills.observer)), START_SECONDS
        ):
            raise OperationalError("the subscribers could not subscribe")
        for owner in wills.owners:
            owner.come()
        if not holds(lambda: wills.are_connected, START_SECONDS):
            raise OperationalError("the clients with wills could not connect")
        for flow in flows:
            flow.start()
        if not holds(lambda: _sent(flows) >= strike_at, SEND_SECONDS):
            raise OperationalError(f"{_sent(flows)} messages were sent, expected {strike_at}")
        for flow in flows:
            flow.note_present()
        with fault.how(target) as struck:
            has_come = holds(lambda: _all_acknowledged(flows), SEND_SECONDS)
            has_come = has_come and holds(
                lambda: (
                    time.monotonic() >= struck.at + WATCH_SECONDS
                    and _all_arrived(flows)
                    and wills.has_arrived
                ),
                SETTLE_SECONDS,
            )
        system.await_healthy()
        if has_come:
            for client in (*subscribers, *wills.owners):
                client.leave(cut=False)
            holds(lambda: wills.are_gone and all(one.is_gone for one in subscribers), START_SECONDS)
            for flow in flows:
                flow.end()
            holds(lambda: _all_acknowledged(flows) and _all_arrived(flows), SETTLE_SECONDS)
    finally:
        attendant.stop()
    stored = stored_messages(system.state().bootstrap_servers, run, starts)
    outcomes = []
    for flow in flows:
        verdict, notes = flow.judge(stored)
        if fault.is_quiet:
            notes += _broken_connections(flow.clients)
        if not flow.has_arrived:
            notes += ("not everything arrived in time",)
        outcomes.append(
            Outcome(name, flow.name, seed, verdict, flow.recovery_seconds(struck.at), notes)
        )
    will_verdict, notes = wills.judge(stored, fault.seconds + UNNOTICED_SECONDS)
    if fault.is_quiet:
        notes += _broken_connections(wills.clients)
    if not wills.are_gone:
        notes += ("not everybody came back, or not every will came",)
    outcomes.append(
        Outcome(
            name,
            "wills",
            seed,
            will_verdict,
            wills.recovery_seconds(struck.at),
            (*notes, *struck.problems),
        )
    )
    for outcome, flow_clients in zip(
        outcomes, (*(flow.clients for flow in flows), wills.clients), strict=True
    ):
        if not outcome.verdict.problems:
            for proved in flow_clients:
                if proved.keeps_session:
                    end_session(proved.client_id, ports[0])
    return outcomes


def _broken_connections(clients: Sequence[ProvingClient]) -> tuple[str, ...]:
    return tuple(
        f"{client.client_id}: connection broke {client.breaks} x"
        for client in clients
        if client.breaks
    )


def log_ends(bootstrap_servers: str) -> Offsets:
    """Return per partition the offset that the log's next record will get."""
    consumer = _consumer(bootstrap_servers)
    try:
        return {
            partition: consumer.get_watermark_offsets(
                TopicPartition(INBOUND, partition), timeout=10
            )[1]
            for partition in consumer.list_topics(INBOUND, timeout=10).topics[INBOUND].partitions
        }
    finally:
        consumer.close()


def stored_messages(bootstrap_servers: str, prefix: str, starts: Offsets) -> Counter[Sent]:
    """Return how often the log holds, from these offsets on, messages whose topic begins so."""
    ends = log_ends(bootstrap_servers)
    consumer = _consumer(bootstrap_servers)
    found: Counter[Sent] = Counter()
    try:
        for partition, position in starts.items():
            consumer.assign([TopicPartition(INBOUND, partition, position)])
            give_up_at = time.monotonic() + READ_SECONDS
            while position < ends[partition]:
                if time.monotonic() > give_up_at:
                    raise OperationalError(f"the log gives nothing behind offset {position}")
                for record in consumer.consume(500, timeout=0.1):
                    if record.error() is not None:
                        raise OperationalError(f"the log cannot be read: {record.error()}")
                    position = (record.offset() or 0) + 1
                    key = record.key() or b""
                    topic_name = key.partition(b"/")[2].decode()
                    if key.startswith(BARRIER_KEY_PREFIX) or not topic_name.startswith(prefix):
                        continue
                    number = (record.value() or b"").partition(b":")[0]
                    found[Sent(topic_name, int(number))] += 1
    finally:
        consumer.close()
    return found


def _consumer(bootstrap_servers: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "prove"})


def _sent(flows: Sequence[MessageFlow]) -> int:
    return sum(flow.sent_count for flow in flows)


def _all_acknowledged(flows: Sequence[MessageFlow]) -> bool:
    return all(flow.is_acknowledged for flow in flows)


def _all_arrived(flows: Sequence[MessageFlow]) -> bool:
    return all(flow.has_arrived for flow in flows)
