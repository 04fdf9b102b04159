"""Real measurements through the whole system: many devices publish, one subscriber counts.

The readings are the hourly air temperatures of Seattle and San Francisco in 2010 that vega-datasets
ships. Each device is one month of one city and has an MQTT client of its own.
"""

import csv
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, Final

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from mqlake.errors import OperationalError

CITIES: Final = {"seattle": "seattle_temps", "san-francisco": "sf_temps"}
"""City -> its data set in vega-datasets; columns `date` and `temp` (°F)."""

TOPIC_FILTER: Final = "demo/+/+/temperature"
CONNECT_SECONDS: Final = 10.0
SETTLE_SECONDS: Final = 30.0
"""How long the last messages may take to be acknowledged and to arrive."""


@dataclass(frozen=True, slots=True)
class DemoReading:
    city: str
    at: datetime
    """Local time, on the hour."""
    fahrenheit: float

    @property
    def device(self) -> str:
        return f"sensor-{self.at.month:02d}"

    @property
    def topic_name(self) -> str:
        return f"demo/{self.city}/{self.device}/temperature"


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    run_id: str
    published: int
    acknowledged: int
    received: int
    """Different messages; the same one twice counts once."""
    duplicates: int
    seconds: float

    @property
    def sql(self) -> str:
        """The query that finds the same number in the history."""
        publishers = f"client_id LIKE 'demo-{self.run_id}-%'"
        return f"SELECT count(*) FROM messages WHERE {publishers}"  # noqa: S608 - our own value


def readings() -> Iterator[DemoReading]:
    """Yield every reading, the devices by turns, each device's in the order of time."""
    devices: dict[tuple[str, str], list[DemoReading]] = {}
    for city, path in _files():
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                at = datetime.fromisoformat(row["date"].replace("/", "-"))
                reading = DemoReading(city, at, float(row["temp"]))
                devices.setdefault((city, reading.device), []).append(reading)
    turns = chain.from_iterable(zip_longest(*devices.values()))
    return (reading for reading in turns if reading is not None)


def run_demo(
    gateways: Sequence[tuple[str, int]],
    *,
    messages: int,
    per_second: float,
    show: Callable[[str], None],
) -> DemoOutcome:
    """Publish readings with QoS 1 and receive them again.

    Args:
        gateways: Host and port; the devices take turns, the subscriber is on the last one.
        messages: How many to publish; at most the number of readings.
        per_second: Messages a second.
        show: Called with a line for some of the messages received, about five a second.

    Raises:
        OperationalError: A gateway does not answer, or it took too long.
    """
    plan = list(islice(readings(), messages))
    run_id = uuid.uuid4().hex[:8]
    begin = time.monotonic()
    with ExitStack() as stack:
        subscriber = stack.enter_context(_Subscriber.on(gateways[-1], run_id, show))
        publishers: dict[tuple[str, str], Client] = {}
        acknowledged = _Counter()
        for reading in plan:
            device = reading.city, reading.device
            if device not in publishers:
                address = gateways[len(publishers) % len(gateways)]
                name = f"demo-{run_id}-{'-'.join(device)}"
                client = publishers[device] = stack.enter_context(_connected(address, name))
                client.on_publish = acknowledged.count
        first = time.monotonic()
        for number, reading in enumerate(plan):
            time.sleep(max(0.0, first + number / per_second - time.monotonic()))
            client = publishers[reading.city, reading.device]
            client.publish(reading.topic_name, _payload(reading, run_id), qos=1)
        acknowledged.wait_for(len(plan), SETTLE_SECONDS)
        subscriber.arrived.wait_for(len(plan), SETTLE_SECONDS)
        return DemoOutcome(
            run_id,
            published=len(plan),
            acknowledged=acknowledged.value,
            received=subscriber.arrived.value,
            duplicates=subscriber.duplicates,
            seconds=time.monotonic() - begin,
        )


def _files() -> Iterator[tuple[str, Path]]:
    # Imports pandas, which takes most of a second.
    from vega_datasets import local_data

    for city, name in CITIES.items():
        yield city, Path(getattr(local_data, name).filepath)


def _payload(reading: DemoReading, run_id: str) -> bytes:
    fields = {"temperature": reading.fahrenheit, "unit": "F", "at": reading.at.isoformat()}
    return json.dumps(fields | {"run": run_id}).encode()


class _Counter:
    """Counts on paho's threads; another thread waits for a number."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.value = 0

    def count(self, *_: Any) -> None:
        with self._changed:
            self.value += 1
            self._changed.notify_all()

    def wait_for(self, value: int, timeout_seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.value >= value, timeout_seconds)


class _Subscriber:
    """Takes messages that arrive of one run; every call but `on` comes on paho's thread."""

    SHOWN_SECONDS = 0.2

    def __init__(self, run_id: str, show: Callable[[str], None]) -> None:
        self.arrived = _Counter()
        self.duplicates = 0
        self._run_id = run_id
        self._show = show
        self._seen: set[tuple[str, str]] = set()
        self._shown_at = 0.0

    @classmethod
    @contextmanager
    def on(
        cls, address: tuple[str, int], run_id: str, show: Callable[[str], None]
    ) -> Iterator["_Subscriber"]:
        subscriber = cls(run_id, show)
        subscribed = threading.Event()
        with _connected(address, f"demo-subscriber-{run_id}") as client:
            client.on_message = subscriber.take
            client.on_subscribe = lambda *_: subscribed.set()
            client.subscribe(TOPIC_FILTER, qos=1)
            if not subscribed.wait(SETTLE_SECONDS):
                raise OperationalError(
                    f"the gateway on port {address[1]} does not answer SUBSCRIBE: "
                    "see bin/mqlake status"
                )
            yield subscriber

    def take(self, _client: Client, _userdata: Any, message: MQTTMessage) -> None:
        fields = json.loads(message.payload)
        if fields.get("run") != self._run_id:
            return
        key = message.topic, fields["at"]
        if key in self._seen:
            self.duplicates += 1
            return
        self._seen.add(key)
        self.arrived.count()
        now = time.monotonic()
        if now - self._shown_at >= self.SHOWN_SECONDS:
            self._shown_at = now
            at = fields["at"].replace("T", " ")[:16]
            self._show(f"{message.topic:44} {at}  {fields['temperature']:5.1f} °F")


@contextmanager
def _connected(address: tuple[str, int], client_id: str) -> Iterator[Client]:
    """Connect, with a thread of paho's own, for the length of the block.

    Raises:
        OperationalError: The gateway does not take the connection.
    """
    client = Client(CallbackAPIVersion.VERSION2, client_id=client_id)
    client.max_inflight_messages_set(1000)
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    try:
        client.connect(*address)
    except OSError as exc:
        raise OperationalError(
            f"the gateway on port {address[1]} cannot be reached: {exc.strerror or exc}; "
            "see bin/mqlake status"
        ) from exc
    client.loop_start()
    try:
        if not connected.wait(CONNECT_SECONDS):
            raise OperationalError(
                f"the gateway on port {address[1]} does not answer CONNECT: see bin/mqlake status"
            )
        yield client
    finally:
        client.disconnect()
        client.loop_stop()
