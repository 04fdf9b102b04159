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
from mqlake.survival.clients import (
    RETRY_SECONDS,
    Attendant,
    ProvingClient,
    Publisher,
    Subscriber,
    WillClient,
    end_session,
)
from mqlake.survival.faults import Fault, Target
from mqlake.survival.ledger import Arrival, Sent, Verdict, WillVerdict, judge, judge_wills

PUBLISHERS: Final = 4
TOPICS_EACH: Final = 2
MESSAGES: Final = 5_000
ABSENT_FROM: Final = 0.4
"""The second subscriber leaves when so much has been sent."""

ABSENT_UNTIL: Final = (0.5, 0.95)
STRUCK_AT: Final = (0.2, 0.8)
"""The fault comes somewhere between these, of the messages that flow beside its own time."""

WILL_CLIENTS: Final = 20
WILL_KEEP_ALIVE_SECONDS: Final = 7
"""Such a client leaves a gateway that stands still after 7 to 14 s."""

WILL_DUE_SECONDS: Final = 14.0
"""A client that is away for longer has its will published: its gateway is dead after 11 s of
silence, the lease and one second; the rest is for whoever owns the session."""

WILL_AWAY_SECONDS: Final = 15.0
"""So long every second client with a will stays away; the others come back at once."""

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
    """`qos 1`, `qos 2` or `wills`."""
    seed: int
    verdict: Verdict | WillVerdict
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


class Flow:
    """The messages of one QoS: some publishers, two subscribers, one of them away for a while.

    Args:
        name: Makes client identifiers and topics unlike those of others.
        ports: Of the gateways.
        qos: Of messages and subscriptions.
        seed: Decides who speaks which version, who is where and when.
        messages: How many, about.
        per_second: How fast.
        moves: Clients go to another gateway when theirs does not answer.
    """

    def __init__(
        self,
        name: str,
        ports: Sequence[int],
        qos: int,
        seed: int,
        *,
        messages: int,
        per_second: float,
        moves: bool,
    ) -> None:
        self.qos = qos
        self._seed = seed
        self._ports = ports
        chance = random.Random(f"{seed}/flow/{qos}")  # noqa: S311 - it has to be repeatable
        levels = [chance.choice((4, 5)) for _ in range(PUBLISHERS)]
        self._count = messages // (PUBLISHERS * TOPICS_EACH) - 1
        self.publishers = [
            Publisher(
                f"{name}-p{number}",
                level,
                ports,
                home=number % len(ports),
                moves=moves,
                topics=[f"{name}/{number}/{letter}" for letter in "abcdefgh"[:TOPICS_EACH]],
                count=self._count,
                per_second=per_second / PUBLISHERS,
                seed=seed,
                qos=qos,
            )
            for number, level in enumerate(levels)
        ]
        first_level = chance.choice((4, 5))
        self.steady, self.absent = (
            Subscriber(
                f"{name}-{who}",
                level,
                ports,
                home=home % len(ports),
                moves=moves,
                topic_filter=f"{name}/+/+",
                seed=seed,
                qos=qos,
            )
            for home, (who, level) in enumerate(
                (("steady", first_level), ("absent", 9 - first_level))
            )
        )
        self.total = len(self.publishers) * TOPICS_EACH * self._count
        self._leave_at = round(ABSENT_FROM * self.total)
        self._back_at = round(chance.uniform(*ABSENT_UNTIL) * self.total)
        self._cut = chance.random() < 0.5
        self._back_home = chance.randrange(len(ports))
        self._has_left = self._is_back = False
        self.was_there: set[str] = set()

    @property
    def subscribers(self) -> tuple[Subscriber, Subscriber]:
        return self.steady, self.absent

    @property
    def clients(self) -> tuple[ProvingClient, ...]:
        return (*self.publishers, *self.subscribers)

    @property
    def sent_count(self) -> int:
        return sum(len(publisher.sent) for publisher in self.publishers)

    @property
    def acknowledged(self) -> set[Sent]:
        return {message for one in self.publishers for message in one.acknowledged}

    @property
    def is_acknowledged(self) -> bool:
        return all(publisher.is_done for publisher in self.publishers)

    @property
    def has_arrived(self) -> bool:
        acknowledged = self.acknowledged
        return all(acknowledged <= one.seen for one in self.subscribers)

    def step(self) -> None:
        """Have the absent one leave and come back when it is time."""
        sent = self.sent_count
        if not self._has_left and sent >= self._leave_at:
            self._has_left = True
            self.absent.leave(cut=self._cut)
        if self._has_left and not self._is_back and sent >= self._back_at:
            self._is_back = True
            self.absent.come(self._back_home)

    def note_present(self) -> None:
        """Note who is connected: these are to be served again."""
        self.was_there = {client.client_id for client in self.clients if client.is_connected}

    def start(self) -> None:
        """Have the publishers send."""
        for publisher in self.publishers:
            publisher.come()

    def end(self) -> None:
        """Send one last message to each topic, to subscribers who have gone and come back.

        Whatever a gateway takes for unfinished comes before it.
        """
        for subscriber in self.subscribers:
            subscriber.come()
        for publisher in self.publishers:
            topics = dict.fromkeys(message.topic_name for message in publisher.sent)
            publisher.send_more([Sent(topic, self._count) for topic in topics])

    def recovery_seconds(self, struck_at: float) -> float:
        """Return how long it took until all who were there were served again."""
        sent = {message: at for one in self.publishers for message, at in one.sent.items()}
        later = {message for message, at in sent.items() if at > struck_at}
        served: list[float] = []
        for publisher in self.publishers:
            if publisher.client_id in self.was_there:
                answers = [at for message, at in publisher.acknowledged.items() if message in later]
                served += [min(answers)] if answers else []
        for subscriber in self.subscribers:
            if subscriber.client_id in self.was_there:
                came = [one.at for one in subscriber.arrivals if one.message in later]
                served += [min(came)] if came else []
        return max(served, default=struck_at) - struck_at

    def judge(self, stored: Counter[Sent]) -> tuple[Verdict, tuple[str, ...]]:
        """Return the verdict, and what is wrong beside the messages."""
        sent = [message for one in self.publishers for message in sorted(one.sent)]
        arrivals: dict[str, list[Arrival]] = {
            one.client_id: list(one.arrivals) for one in self.subscribers
        }
        notes = list(_lost_sessions(self.clients))
        for publisher in self.publishers:
            if publisher.refused:
                reason = next(iter(publisher.refused.values()))
                notes.append(f"{publisher.client_id}: {len(publisher.refused)} refused, {reason}")
            if not publisher.is_done:
                notes.append(f"{publisher.client_id}: not everything was sent and acknowledged")
        return judge(self.qos, sent, self.acknowledged, arrivals, stored), tuple(notes)


class WillFlow:
    """Clients that are connected all the time, each with a will, and one that takes the wills.

    Args:
        name: Makes client identifiers and topics unlike those of others.
        ports: Of the gateways.
        seed: Decides who speaks which version and who is where.
        moves: Clients go to another gateway when theirs does not answer.
    """

    def __init__(self, name: str, ports: Sequence[int], seed: int, *, moves: bool) -> None:
        chance = random.Random(f"{seed}/wills")  # noqa: S311 - it has to be repeatable
        self.owners = [
            WillClient(
                f"{name}-{number}",
                chance.choice((4, 5)),
                ports,
                home=number // 2 % len(ports),
                moves=moves,
                topic_name=f"{name}/{number}/will",
                seed=seed,
                keep_alive_seconds=WILL_KEEP_ALIVE_SECONDS,
                away_seconds=WILL_AWAY_SECONDS if number % 2 else RETRY_SECONDS,
            )
            for number in range(WILL_CLIENTS)
        ]
        self.observer = Subscriber(
            f"{name}-observer",
            chance.choice((4, 5)),
            ports,
            home=chance.randrange(len(ports)),
            moves=moves,
            topic_filter=f"{name}/+/will",
            seed=seed,
            qos=1,
        )

    @property
    def clients(self) -> tuple[ProvingClient, ...]:
        return (*self.owners, self.observer)

    @property
    def are_connected(self) -> bool:
        return all(one.is_connected for one in self.clients)

    @property
    def are_gone(self) -> bool:
        return all(one.is_gone for one in self.owners)

    @property
    def has_arrived(self) -> bool:
        """Whether all clients are back and all wills have come that are due."""
        return self.are_connected and all(
            life.will in self.observer.seen
            for one in self.owners
            for life in one.lives
            if life.away_seconds >= WILL_DUE_SECONDS
        )

    def recovery_seconds(self, struck_at: float) -> float:
        """Return how long it took until the last will came; 0 without any."""
        return max((one.at for one in self.observer.arrivals), default=struck_at) - struck_at

    def judge(
        self, stored: Counter[Sent], unnoticed_seconds: float
    ) -> tuple[WillVerdict, tuple[str, ...]]:
        """Return the verdict, and what is wrong beside the wills."""
        verdict = judge_wills(
            [life for one in self.owners for life in one.lives],
            [will for one in self.owners for will in one.wills],
            self.observer.arrivals,
            stored,
            due_seconds=WILL_DUE_SECONDS,
            unnoticed_seconds=unnoticed_seconds,
        )
        return verdict, _lost_sessions(self.clients)


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
    """Run messages of each QoS and wills through a system, with a fault in the middle.

    A fault that lasts makes the messages flow slower, so that they flow for as much longer.

    Raises:
        OperationalError: The system does not serve at all, before the fault or long after it.
    """
    chance = random.Random(f"{seed}/{name}")  # noqa: S311 - it has to be repeatable
    ports = [system.mqtt_port + number for number in range(system.gateways)]
    run = f"prove-{name}-{seed}"
    usual_seconds = messages / per_second
    seconds = usual_seconds + fault.seconds
    flows = [
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
        outcomes.append(
            Outcome(name, f"qos {flow.qos}", seed, verdict, flow.recovery_seconds(struck.at), notes)
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
                end_session(proved.client_id, ports[0])
    return outcomes


def _lost_sessions(clients: Sequence[ProvingClient]) -> tuple[str, ...]:
    return tuple(
        f"{client.client_id}: session not present {client.lost_sessions} x"
        for client in clients
        if client.lost_sessions
    )


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


def _sent(flows: Sequence[Flow]) -> int:
    return sum(flow.sent_count for flow in flows)


def _all_acknowledged(flows: Sequence[Flow]) -> bool:
    return all(flow.is_acknowledged for flow in flows)


def _all_arrived(flows: Sequence[Flow]) -> bool:
    return all(flow.has_arrived for flow in flows)
