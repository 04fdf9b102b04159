"""What clients of a proof do while connected: publish, subscribe, look anew, have a will."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from mqlake.survival.clients import PACKET_IDENTIFIER_NOT_FOUND, Caller, ProvingClient
from mqlake.survival.ledger import Arrival, Life, Look, Sent, payload_of

WINDOWS: Final = {1: 1, 2: 8}
"""Messages of a publisher on their way at once, by QoS. Those of QoS 1 that are in the log already
when something is killed come twice, to both subscribers."""

LOOK_SECONDS: Final = 90.0
"""How long after SUBACK a retained message may take: longer than the router is away."""


class Publisher(ProvingClient):
    """Sends its topics' messages by turns, at a steady rate while it is connected.

    At most so many as `WINDOWS` says are on their way, and after a new connection nothing new
    leaves before what was on its way has been acknowledged: paho would mix the two.

    Args:
        topics: Topic names that nobody else publishes to.
        count: Messages for each topic.
        per_second: Of all its topics together.
        seed: Of the payloads.
        qos: Of the messages.
        retain: Whether each is to be retained.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        topics: Sequence[str],
        count: int,
        per_second: float,
        seed: int,
        qos: int,
        retain: bool = False,
    ) -> None:
        super().__init__(caller)
        self._retain = retain
        self._plan = deque(Sent(topic, number) for number in range(count) for topic in topics)
        self._seconds_each = 1 / per_second
        self._seed = seed
        self._qos = qos
        self._window = WINDOWS[qos]
        self._due_at = 0.0
        self._under_way: dict[int, Sent] = {}
        self._drains = False
        self.sent: dict[Sent, float] = {}
        """When, by `time.monotonic`."""
        self.acknowledged: dict[Sent, float] = {}
        self.refused: dict[Sent, str] = {}
        self._paho.on_publish = self._answered

    @property
    def is_done(self) -> bool:
        """Whether it has sent everything and knows what became of it."""
        return not self._plan and not self._under_way

    def send_more(self, messages: Sequence[Sent]) -> None:
        """Send these too."""
        self._plan.extend(messages)

    def _welcomed(self) -> None:
        self._drains = True
        self._due_at = time.monotonic()

    def _turn(self, now: float) -> None:
        if self._drains:
            self._drains = bool(self._under_way)
            return
        while self._plan and self._due_at <= now and len(self._under_way) < self._window:
            # Looked at before it is taken: nobody may find it in neither place.
            message = self._plan[0]
            self.sent[message] = now
            self._due_at += self._seconds_each
            info = self._paho.publish(
                message.topic_name, payload_of(self._seed, message), self._qos, self._retain
            )
            self._under_way[info.mid] = message
            self._plan.popleft()
        # What could not leave in time is not made up for all at once.
        self._due_at = max(self._due_at, now - self._window * self._seconds_each)

    def _answered(
        self, _client: Client, _data: Any, mid: int, code: ReasonCode, _more: Any
    ) -> None:
        message = self._under_way.pop(mid)
        is_repeated = self._paho.take_releases(mid) > 1
        if not code.is_failure or (is_repeated and code.value == PACKET_IDENTIFIER_NOT_FOUND):
            self.acknowledged[message] = time.monotonic()
        else:
            self.refused[message] = f"{PacketTypes().Names[code.packetType]}: {code}"


class Subscriber(ProvingClient):
    """Takes everything that a topic filter matches.

    Args:
        topic_filter: Subscribed to once, when the session begins.
        seed: Of the payloads.
        qos: Of the subscription.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        topic_filter: str,
        seed: int,
        qos: int,
    ) -> None:
        super().__init__(caller)
        self._topic_filter = topic_filter
        self._seed = seed
        self._qos = qos
        self.is_subscribed = False
        self.arrivals: list[Arrival] = []
        self.seen: set[Sent] = set()
        self._paho.on_subscribe = self._subscribed
        self._paho.on_message = self._take

    def _welcomed(self) -> None:
        if not self.is_subscribed:
            self._paho.subscribe(self._topic_filter, self._qos)

    def _subscribed(self, *_: Any) -> None:
        self.is_subscribed = True

    def _take(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        sent = sent_as(message)
        is_damaged = message.payload != payload_of(self._seed, sent)
        self.arrivals.append(
            Arrival(sent, message.dup, time.monotonic(), self.connections, is_damaged)
        )
        self.seen.add(sent)


class WillClient(ProvingClient):
    """Does nothing but to be connected, with a will that names its attempt to connect.

    Args:
        topic_name: Of its wills.
        seed: Of their payloads.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        topic_name: str,
        seed: int,
    ) -> None:
        super().__init__(caller)
        self._topic_name = topic_name
        self._seed = seed
        self.wills: list[Sent] = []
        """One for each attempt."""
        self.lives: list[Life] = []
        """One for each attempt that was answered."""

    def _connect(self, now: float) -> None:
        will = Sent(self._topic_name, len(self.wills))
        self.wills.append(will)
        self._paho.will_set(self._topic_name, payload_of(self._seed, will), qos=1)
        super()._connect(now)
        if self.socket is not None and self.lives and self.lives[-1].sought_at is None:
            self.lives[-1].sought_at = now

    def _welcomed(self) -> None:
        self.lives.append(Life(self.wills[-1]))

    def _broke(self, now: float) -> None:
        self.lives[-1].broke_at = now


class Looker(ProvingClient):
    """Connects, subscribes, takes one retained message of each topic and leaves, again and again.

    Args:
        topics: That have a retained message, all matched by the filter.
        topic_filter: Subscribed to in a new session each time.
        seed: Of the payloads.
        known: Returns by topic the last value that its publisher knows to be stored.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        topics: Sequence[str],
        topic_filter: str,
        seed: int,
        known: Callable[[], dict[str, int]],
    ) -> None:
        super().__init__(caller)
        self._topics = topics
        self._topic_filter = topic_filter
        self._seed = seed
        self._known = known
        self._seen: dict[str, int] = {}
        self._look: Look | None = None
        self._subscribed_at: float | None = None
        self.looks: list[Look] = []
        self._paho.on_subscribe = self._subscribed
        self._paho.on_message = self._take

    def _welcomed(self) -> None:
        least = self._known()
        for topic, value in self._seen.items():
            least[topic] = max(value, least.get(topic, -1))
        self._look = Look(time.monotonic(), least)
        self._subscribed_at = None
        self._paho.subscribe(self._topic_filter, 1)

    def _subscribed(self, *_: Any) -> None:
        self._subscribed_at = time.monotonic()

    def _broke(self, _now: float) -> None:
        self._look = None  # it saw what it saw, but it was not finished

    def _take(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        look = self._look
        if look is None:
            return
        sent = sent_as(message)
        look.values.append(sent)
        if message.payload != payload_of(self._seed, sent):
            look.damaged.append(sent)
        self._seen[sent.topic_name] = max(sent.sequence, self._seen.get(sent.topic_name, -1))

    def _turn(self, now: float) -> None:
        look, subscribed_at = self._look, self._subscribed_at
        if look is None or subscribed_at is None:
            return
        has_all = len({one.topic_name for one in look.values}) == len(self._topics)
        if has_all or now > subscribed_at + LOOK_SECONDS:
            self.looks.append(look)
            self._look = None
            self.leave(cut=False)


def sent_as(message: MQTTMessage) -> Sent:
    """Return which message one is that has arrived."""
    number = message.payload.partition(b":")[0]
    return Sent(message.topic, int(number) if number.isdigit() else -1)
