"""What was sent, acknowledged, stored and received, and whether that is what the QoS promises.

A duplicate is an arrival of a message that the subscriber has had before. QoS 1 allows it where the
publisher sent the message twice, or the gateway does not know whether the client has it; QoS 2
never.

The order of a topic holds twice: first arrivals come in it; and so does all that comes on one
connection, what is sent again included. Only a message that the log holds more than once, because
its publisher had to repeat it, may come behind a later one.

A will names the connection it belongs to. It comes once when that connection breaks, and never
while it is open or when it ended with DISCONNECT.

A message for a share group comes to one member, once. What a new subscription sees of retained
messages is never older than what was stored, or seen by anybody, before it.
"""

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MAX_DUPLICATES: Final = 0.001
"""Of the deliveries of QoS 1 messages, that is of each message to each subscriber."""

EXAMPLES: Final = 5
"""So many messages are named of each thing that went wrong."""

PAYLOAD_BYTES: Final = (16, 512)


class Sent(NamedTuple):
    """One message by the topic it went to and its place there, counted from 0."""

    topic_name: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.topic_name}#{self.sequence}"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message as a subscriber was given it."""

    message: Sent
    dup: bool
    at: float
    """By `time.monotonic`."""
    connection: int = 1
    """Of the subscriber, counted from 1."""
    is_damaged: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the messages of one QoS.

    Attributes:
        sent: Handed to the publishers' clients.
        acknowledged: Of these, with a PUBACK or PUBCOMP that is no refusal.
        received: Different messages, all subscribers together.
        lost: Acknowledged ones that did not reach a subscriber, over all subscribers.
        duplicates: Arrivals beyond the first.
        without_dup: Of these, without the DUP flag though the publisher's message is stored once.
        out_of_order: Messages that came behind a later one of their topic and should not have.
        problems: What breaks a promise, one line each; empty when all is well.
    """

    sent: int
    acknowledged: int
    received: int
    lost: int
    duplicates: int
    without_dup: int
    out_of_order: int
    problems: tuple[str, ...] = field(default=())


@dataclass(slots=True)
class Life:
    """One connection of a client with a will, as the client saw it; times by `time.monotonic`."""

    will: Sent
    broke_at: float | None = None
    """None while it is open, and when the client itself has ended it."""
    sought_at: float | None = None
    """When the client sent its next CONNECT."""

    @property
    def away_seconds(self) -> float:
        """How long nothing told the system, after the break, that the client is there."""
        if self.broke_at is None:
            return 0.0
        return math.inf if self.sought_at is None else self.sought_at - self.broke_at


@dataclass(frozen=True, slots=True)
class WillVerdict:
    """What became of the wills.

    Attributes:
        clients: That had one.
        broken: Connections that ended without DISCONNECT.
        due: Of these, with a client that stayed away for so long that its will has to come.
        wills: That the log has.
        by_client: How many each topic has, the topics without any left out.
        missing: Due, and not in the log or not delivered.
        twice: That the log has more than once.
        of_connected: That came while their connection was open, or after its DISCONNECT.
        repeated: Deliveries to the observer beyond the first; QoS 1 allows them with DUP.
        problems: What breaks a promise, one line each; empty when all is well.
    """

    clients: int
    broken: int
    due: int
    wills: int
    by_client: dict[str, int]
    missing: int
    twice: int
    of_connected: int
    repeated: int
    problems: tuple[str, ...] = field(default=())


@dataclass(slots=True)
class Look:
    """What one new subscription saw of retained messages, each the next value of its topic."""

    at: float
    """When it was asked for, by `time.monotonic`."""
    least: dict[str, int]
    """By topic the value that was there already: stored for certain, or seen by somebody."""
    values: list[Sent] = field(default_factory=list)
    """All that came, in its order."""
    damaged: list[Sent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RetainedVerdict:
    """What new subscriptions saw of retained messages.

    Attributes:
        sent: Retained messages that were published.
        looks: New subscriptions that were made.
        missing: Topics without a message, over all looks.
        back_in_time: Values older than one that was there before, or came before.
        last: Looks after the last message was stored.
        problems: What breaks a promise, one line each; empty when all is well.
    """

    sent: int
    looks: int
    missing: int
    back_in_time: int
    last: int
    problems: tuple[str, ...] = field(default=())


def payload_of(seed: int, message: Sent) -> bytes:
    """Return the payload of a message, always the same: its sequence number and random bytes."""
    randomness = random.Random(f"{seed}/{message}")  # noqa: S311 - it has to be repeatable
    filler = randomness.randbytes(randomness.randint(*PAYLOAD_BYTES))
    return b"%d:%b" % (message.sequence, filler)


def judge(
    qos: int,
    sent: Sequence[Sent],
    acknowledged: set[Sent],
    arrivals: Mapping[str, Sequence[Arrival]],
    stored: Mapping[Sent, int],
) -> Verdict:
    """Compare what was promised with what came.

    Args:
        qos: 1 or 2, of messages and subscriptions.
        sent: In the order of each topic.
        acknowledged: Promised to their publishers.
        arrivals: Of each subscriber, in their order.
        stored: How often the log holds each message.
    """
    known = set(sent)
    problems: list[str] = []
    received = lost = duplicates = without_dup = out_of_order = 0
    for name, came in arrivals.items():
        counts = Counter(arrival.message for arrival in came)
        missing = [message for message in sent if message in acknowledged and not counts[message]]
        unordered = _out_of_order(came, stored)
        repeated = _repetitions(came)
        odd = [one.message for one in repeated if not one.dup and stored.get(one.message, 0) < 2]
        received += len(counts)
        lost += len(missing)
        out_of_order += len(unordered)
        duplicates += len(repeated)
        without_dup += len(odd)
        problems += _problem(f"{name}: lost", missing)
        problems += _problem(f"{name}: out of order", unordered)
        problems += _problem(f"{name}: nobody sent", [one for one in counts if one not in known])
        problems += _problem(f"{name}: damaged", [one.message for one in came if one.is_damaged])
        if qos == 2:
            problems += _problem(f"{name}: twice", [one.message for one in repeated])
    unstored = [message for message in sent if message in acknowledged and not stored.get(message)]
    problems += _problem("acknowledged and not in the log", unstored)
    if qos == 2:
        twice = [message for message in sent if stored.get(message, 0) > 1]
        problems += _problem("twice in the log", twice)
    else:
        allowed = int(MAX_DUPLICATES * len(sent) * len(arrivals))
        if duplicates > allowed:
            problems.append(f"{duplicates} duplicates, at most {allowed} expected")
    return Verdict(
        len(sent),
        len(acknowledged),
        received,
        lost,
        duplicates,
        without_dup,
        out_of_order,
        tuple(problems),
    )


def judge_shared(
    sent: Sequence[Sent],
    acknowledged: set[Sent],
    arrivals: Mapping[str, Sequence[Arrival]],
    stored: Mapping[Sent, int],
) -> Verdict:
    """Compare what was promised to a share group with what its members got, all of QoS 2.

    Each message comes to one member, once. There is no order between members.

    Args:
        sent: In the order of each topic.
        acknowledged: Promised to their publishers.
        arrivals: Of each member, in their order.
        stored: How often the log holds each message.
    """
    came = [arrival for one in arrivals.values() for arrival in one]
    counts = Counter(arrival.message for arrival in came)
    lost = [message for message in sent if message in acknowledged and not counts[message]]
    twice = [message for message, count in counts.items() if count > 1]
    known = set(sent)
    problems = [
        *_problem("lost", lost),
        *_problem("to members twice", twice),
        *_problem("nobody sent", [one for one in counts if one not in known]),
        *_problem("damaged", [one.message for one in came if one.is_damaged]),
        *_problem("twice in the log", [one for one in sent if stored.get(one, 0) > 1]),
    ]
    duplicates = sum(counts[message] - 1 for message in twice)
    return Verdict(
        len(sent), len(acknowledged), len(counts), len(lost), duplicates, 0, 0, tuple(problems)
    )


def judge_retained(
    sent: Sequence[Sent], looks: Sequence[Look], topics: Sequence[str], stored_at: float
) -> RetainedVerdict:
    """Compare what new subscriptions saw with what had been stored before each of them.

    Args:
        sent: All retained messages.
        looks: In their order.
        topics: That each look is to see.
        stored_at: When the last message was stored, by `time.monotonic`.
    """
    missing: list[Sent] = []
    back: list[Sent] = []
    for look in looks:
        latest = dict(look.least)
        for one in look.values:
            if one.sequence < latest.get(one.topic_name, -1):
                back.append(one)
            latest[one.topic_name] = max(one.sequence, latest.get(one.topic_name, -1))
        seen = {one.topic_name for one in look.values}
        missing += [Sent(topic, look.least.get(topic, -1)) for topic in topics if topic not in seen]
    known = set(sent)
    values = {one for look in looks for one in look.values}
    problems = [
        *_problem("retained message missing", missing),
        *_problem("retained message older than one before", back),
        *_problem("nobody retained", [one for one in values if one not in known]),
        *_problem("retained message damaged", [one for look in looks for one in look.damaged]),
    ]
    last = sum(look.at >= stored_at for look in looks)
    return RetainedVerdict(len(sent), len(looks), len(missing), len(back), last, tuple(problems))


def judge_wills(
    lives: Sequence[Life],
    wills: Iterable[Sent],
    arrivals: Sequence[Arrival],
    stored: Mapping[Sent, int],
    *,
    due_seconds: float,
    unnoticed_seconds: float,
) -> WillVerdict:
    """Compare the wills that came with the connections that broke.

    An attempt to connect that was not answered may have been taken all the same, so its will may
    come, once.

    Args:
        lives: Of all clients.
        wills: Of all their attempts to connect.
        arrivals: At the observer, in their order.
        stored: How often the log holds each will.
        due_seconds: A client that is away for longer has its will published.
        unnoticed_seconds: So much later than the system a client may notice that its connection is
            over.
    """
    known = dict.fromkeys(wills)
    came: dict[Sent, float] = {}
    for arrival in arrivals:
        came.setdefault(arrival.message, arrival.at)
    published = [will for will in known if stored.get(will)]
    broken = [life for life in lives if life.broke_at is not None]
    due = [life.will for life in broken if life.away_seconds >= due_seconds]
    missing = [will for will in due if will not in came or not stored.get(will)]
    twice = [will for will in published if stored[will] > 1]
    of_connected = [
        life.will
        for life in lives
        if (life.broke_at is None and (stored.get(life.will) or life.will in came))
        or (
            life.broke_at is not None
            and came.get(life.will, math.inf) < life.broke_at - unnoticed_seconds
        )
    ]
    repeated = _repetitions(arrivals)
    undelivered = [will for will in published if will not in came and will not in missing]
    problems = [
        *_problem("due will did not come", missing),
        *_problem("will in the log and not delivered", undelivered),
        *_problem("will twice in the log", twice),
        *_problem("will of a connected client", of_connected),
        *_problem("nobody's will", [will for will in came if will not in known]),
        *_problem("will damaged", [one.message for one in arrivals if one.is_damaged]),
        *_problem("will again without DUP", [one.message for one in repeated if not one.dup]),
    ]
    return WillVerdict(
        clients=len({will.topic_name for will in known}),
        broken=len(broken),
        due=len(due),
        wills=sum(stored[will] for will in published),
        by_client=dict(Counter(will.topic_name for will in published)),
        missing=len(missing),
        twice=len(twice),
        of_connected=len(of_connected),
        repeated=len(repeated),
        problems=tuple(problems),
    )


def _repetitions(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """Return the arrivals beyond the first of each message."""
    seen: set[Sent] = set()
    repeated = []
    for arrival in arrivals:
        if arrival.message in seen:
            repeated.append(arrival)
        seen.add(arrival.message)
    return repeated


def _out_of_order(arrivals: Iterable[Arrival], stored: Mapping[Sent, int]) -> list[Sent]:
    """Return the messages that came behind a later one of their topic and should not have."""
    seen: set[Sent] = set()
    latest: dict[str, int] = {}
    latest_on: dict[tuple[str, int], int] = {}
    unordered: dict[Sent, None] = {}
    for message, connection in ((one.message, one.connection) for one in arrivals):
        topic_name, sequence = message
        is_late = message not in seen and sequence < latest.get(topic_name, -1)
        is_behind = sequence < latest_on.get((topic_name, connection), -1)
        if is_late or (is_behind and stored.get(message, 0) < 2):
            unordered[message] = None
        seen.add(message)
        latest[topic_name] = max(sequence, latest.get(topic_name, -1))
        latest_on[topic_name, connection] = max(
            sequence, latest_on.get((topic_name, connection), -1)
        )
    return list(unordered)


def _problem(what: str, messages: Sequence[Sent]) -> list[str]:
    if not messages:
        return []
    named = ", ".join(map(str, messages[:EXAMPLES]))
    more = ", …" if len(messages) > EXAMPLES else ""
    return [f"{what}: {len(messages)} ({named}{more})"]
