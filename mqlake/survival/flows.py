"""What flows through a trial: messages of each kind and wills, who sends and who takes them."""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Final

from mqlake.survival.clients import RETRY_SECONDS, Caller, ProvingClient
from mqlake.survival.ledger import (
    Arrival,
    RetainedVerdict,
    Sent,
    Verdict,
    WillVerdict,
    judge,
    judge_retained,
    judge_shared,
    judge_wills,
)
from mqlake.survival.roles import Looker, Publisher, Subscriber, WillClient

PUBLISHERS: Final = 4
TOPICS_EACH: Final = 2
ABSENT_FROM: Final = 0.4
"""The second subscriber leaves when so much has been sent."""

ABSENT_UNTIL: Final = (0.5, 0.95)
SHARED_PUBLISHERS: Final = 2
SHARE_MEMBERS: Final = 4
SHARED_PER_SECOND: Final = 100.0

RETAINED_TOPICS: Final = 5
RETAINED_PER_SECOND: Final = 20.0

WILL_CLIENTS: Final = 20
WILL_KEEP_ALIVE_SECONDS: Final = 7
"""Such a client leaves a gateway that stands still after 7 to 14 s."""

WILL_DUE_SECONDS: Final = 14.0
"""A client that is away for longer has its will published: its gateway is dead after 11 s of
silence, the lease and one second; the rest is for whoever owns the session."""

WILL_AWAY_SECONDS: Final = 15.0
"""So long every second client with a will stays away; the others come back at once."""


class MessageFlow(ABC):
    """Messages of some publishers to some clients, and what is promised of them.

    Attributes:
        name: For people.
        publishers: Of topics that are theirs alone.
        subscribers: Come before the messages; a message may be for all of them or for one.
        total: Messages that are sent while things are struck.
        was_there: Clients that were connected then.
    """

    subscribers: Sequence[Subscriber] = ()

    def __init__(self, name: str, publishers: Sequence[Publisher], total: int) -> None:
        self.name = name
        self.publishers = publishers
        self.total = total
        self.was_there: set[str] = set()

    @property
    def clients(self) -> tuple[ProvingClient, ...]:
        return (*self.publishers, *self.subscribers)

    @property
    def sent_count(self) -> int:
        return sum(len(publisher.sent) for publisher in self.publishers)

    @property
    def sent(self) -> list[Sent]:
        return [message for one in self.publishers for message in sorted(one.sent)]

    @property
    def acknowledged(self) -> set[Sent]:
        return {message for one in self.publishers for message in one.acknowledged}

    @property
    def is_acknowledged(self) -> bool:
        return all(publisher.is_done for publisher in self.publishers)

    @property
    @abstractmethod
    def has_arrived(self) -> bool:
        """Whether all that was acknowledged is where it is to be."""

    def step(self) -> None:  # noqa: B027 - some have nothing to do
        """Do what is due; called all the time."""

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
            last = dict(sorted(publisher.sent))
            publisher.send_more([Sent(topic, number + 1) for topic, number in last.items()])

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

    def judge(self, stored: Counter[Sent]) -> tuple[Verdict | RetainedVerdict, tuple[str, ...]]:
        """Return the verdict, and what is wrong beside the messages."""
        notes = list(lost_sessions(self.clients))
        for publisher in self.publishers:
            if publisher.refused:
                reason = next(iter(publisher.refused.values()))
                notes.append(f"{publisher.client_id}: {len(publisher.refused)} refused, {reason}")
            if not publisher.is_done:
                notes.append(f"{publisher.client_id}: not everything was sent and acknowledged")
        return self._verdict(stored), tuple(notes)

    @abstractmethod
    def _verdict(self, stored: Counter[Sent]) -> Verdict | RetainedVerdict:
        """Compare what was promised with what came."""

    @property
    def _arrivals(self) -> dict[str, list[Arrival]]:
        return {one.client_id: list(one.arrivals) for one in self.subscribers}


def _callers(
    prefix: str, levels: Sequence[int], ports: Sequence[int], *, moves: bool
) -> list[Caller]:
    """Return one for each level, at the gateways in turn."""
    return [
        Caller(f"{prefix}{number}", level, ports, number % len(ports), moves)
        for number, level in enumerate(levels)
    ]


def _publishers(
    name: str, callers: Sequence[Caller], count: int, per_second: float, *, seed: int, qos: int
) -> list[Publisher]:
    """Return those that send so many messages to each of their topics, together at that rate."""
    return [
        Publisher(
            caller,
            topics=[f"{name}/{number}/{letter}" for letter in "abcdefgh"[:TOPICS_EACH]],
            count=count,
            per_second=per_second / len(callers),
            seed=seed,
            qos=qos,
        )
        for number, caller in enumerate(callers)
    ]


class Flow(MessageFlow):
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
        chance = random.Random(f"{seed}/flow/{qos}")  # noqa: S311 - it has to be repeatable
        levels = [chance.choice((4, 5)) for _ in range(PUBLISHERS)]
        count = messages // (PUBLISHERS * TOPICS_EACH) - 1
        callers = _callers(f"{name}-p", levels, ports, moves=moves)
        publishers = _publishers(name, callers, count, per_second, seed=seed, qos=qos)
        super().__init__(f"qos {qos}", publishers, PUBLISHERS * TOPICS_EACH * count)
        first_level = chance.choice((4, 5))
        self.steady, self.absent = self.subscribers = [
            Subscriber(
                Caller(f"{name}-{who}", level, ports, home % len(ports), moves),
                topic_filter=f"{name}/+/+",
                seed=seed,
                qos=qos,
            )
            for home, (who, level) in enumerate(
                (("steady", first_level), ("absent", 9 - first_level))
            )
        ]
        self._leave_at = round(ABSENT_FROM * self.total)
        self._back_at = round(chance.uniform(*ABSENT_UNTIL) * self.total)
        self._cut = chance.random() < 0.5
        self._back_home = chance.randrange(len(ports))
        self._has_left = self._is_back = False

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

    def _verdict(self, stored: Counter[Sent]) -> Verdict:
        return judge(self.qos, self.sent, self.acknowledged, self._arrivals, stored)


class ShareFlow(MessageFlow):
    """Messages of QoS 2 to a share group whose members are at all gateways.

    Args:
        name: Makes client identifiers and topics unlike those of others.
        ports: Of the gateways.
        seed: Decides who speaks which version.
        seconds: How long messages flow.
        moves: Clients go to another gateway when theirs does not answer.
    """

    def __init__(
        self, name: str, ports: Sequence[int], seed: int, *, seconds: float, moves: bool
    ) -> None:
        chance = random.Random(f"{seed}/shared")  # noqa: S311 - it has to be repeatable
        levels = [chance.choice((4, 5)) for _ in range(SHARED_PUBLISHERS + SHARE_MEMBERS)]
        count = round(SHARED_PER_SECOND * seconds / (SHARED_PUBLISHERS * TOPICS_EACH))
        callers = _callers(f"{name}-p", levels[:SHARED_PUBLISHERS], ports, moves=moves)
        publishers = _publishers(name, callers, count, SHARED_PER_SECOND, seed=seed, qos=2)
        super().__init__("shared", publishers, SHARED_PUBLISHERS * TOPICS_EACH * count)
        self.subscribers = [
            Subscriber(caller, topic_filter=f"$share/{name}/{name}/+/+", seed=seed, qos=2)
            for caller in _callers(f"{name}-m", levels[SHARED_PUBLISHERS:], ports, moves=moves)
        ]

    @property
    def has_arrived(self) -> bool:
        return self.acknowledged <= set().union(*(one.seen for one in self.subscribers))

    def _verdict(self, stored: Counter[Sent]) -> Verdict:
        return judge_shared(self.sent, self.acknowledged, self._arrivals, stored)


class RetainedFlow(MessageFlow):
    """A publisher that retains value after value, and one that subscribes anew all the time.

    Args:
        name: Makes client identifiers and topics unlike those of others.
        ports: Of the gateways.
        seed: Decides who speaks which version.
        seconds: How long messages flow.
        moves: Clients go to another gateway when theirs does not answer.
    """

    def __init__(
        self, name: str, ports: Sequence[int], seed: int, *, seconds: float, moves: bool
    ) -> None:
        chance = random.Random(f"{seed}/retained")  # noqa: S311 - it has to be repeatable
        count = round(RETAINED_PER_SECOND * seconds / RETAINED_TOPICS)
        self._topics = [f"{name}/{number}" for number in range(RETAINED_TOPICS)]
        self._ports = ports
        publisher = Publisher(
            Caller(f"{name}-p", chance.choice((4, 5)), ports, chance.randrange(len(ports)), moves),
            topics=self._topics,
            count=count,
            per_second=RETAINED_PER_SECOND,
            seed=seed,
            qos=1,
            retain=True,
        )
        super().__init__("retained", [publisher], RETAINED_TOPICS * count)
        level = chance.choice((4, 5))
        self.looker = Looker(
            Caller(f"{name}-looker", level, ports, 0, moves, keeps_session=False),
            topics=self._topics,
            topic_filter=f"{name}/+",
            seed=seed,
            known=self._known,
        )
        self._next_home = 0

    @property
    def clients(self) -> tuple[ProvingClient, ...]:
        return (*self.publishers, self.looker)

    @property
    def has_arrived(self) -> bool:
        """Whether somebody has looked since the last value was stored."""
        stored_at = self._stored_at
        return any(look.at >= stored_at for look in self.looker.looks)

    def step(self) -> None:
        """Have somebody look again, at the next gateway, as soon as there is something to see."""
        if self.looker.is_gone and len(self._known()) == len(self._topics):
            self.looker.come(self._next_home)
            self._next_home = (self._next_home + 1) % len(self._ports)

    def _known(self) -> dict[str, int]:
        return dict(sorted(self.acknowledged))

    @property
    def _stored_at(self) -> float:
        return max((at for one in self.publishers for at in one.acknowledged.values()), default=0.0)

    def _verdict(self, _stored: Counter[Sent]) -> RetainedVerdict:
        return judge_retained(self.sent, self.looker.looks, self._topics, self._stored_at)


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
                Caller(
                    f"{name}-{number}",
                    chance.choice((4, 5)),
                    ports,
                    number // 2 % len(ports),
                    moves,
                    WILL_KEEP_ALIVE_SECONDS,
                    WILL_AWAY_SECONDS if number % 2 else RETRY_SECONDS,
                ),
                topic_name=f"{name}/{number}/will",
                seed=seed,
            )
            for number in range(WILL_CLIENTS)
        ]
        observer_level, observer_home = chance.choice((4, 5)), chance.randrange(len(ports))
        self.observer = Subscriber(
            Caller(f"{name}-observer", observer_level, ports, observer_home, moves),
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
        return verdict, lost_sessions(self.clients)


def lost_sessions(clients: Sequence[ProvingClient]) -> tuple[str, ...]:
    """Return a line for each client that was told of no session though it had one."""
    return tuple(
        f"{client.client_id}: session not present {client.lost_sessions} x"
        for client in clients
        if client.lost_sessions
    )
