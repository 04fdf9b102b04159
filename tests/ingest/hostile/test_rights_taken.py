"""Rights that are taken away: each delivery that is under way is asked for by those of now."""

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from ingest.protocol.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from tests.ingest.gateway.harness import until
from tests.ingest.gateway.test_redelivery import deliver, stored
from tests.ingest.gateway.test_rights import OPEN
from tests.ingest.hostile.town import Town, ask, town

pytestmark = pytest.mark.anyio

NUMBERS = count()
KEPT: Any = {"session_expiry_interval": 100}
SINCE: Any = {"user_property": [("mqlake-from", "2020-01-01T00:00:00Z")]}
every_qos = pytest.mark.parametrize("qos", [0, 1, 2])
acknowledged = pytest.mark.parametrize("qos", [1, 2])
each_version = pytest.mark.parametrize("level", [3, 4, 5], ids=["3.1", "3.1.1", "5.0"])


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    async with town(tmp_path_factory.mktemp("town")) as found:
        yield found


class Case:
    """Topics of one case: `open` stays, `shut` is what is taken away from ann."""

    def __init__(self, place: Town) -> None:
        self.place = place
        self.name = f"case/{next(NUMBERS)}"
        self.open, self.shut, self.all = (f"{self.name}/{one}" for one in ("open", "shut", "#"))
        self.dropped_before = place.harness.counters.dropped_not_authorized

    async def take_away(self, *actions: str) -> None:
        asked = ", ".join(f'"{one}"' for one in actions or ("receive",))
        deny = f'[[rules]]\neffect = "deny"\nactions = [{asked}]\ntopics = ["{self.shut}"]\n'
        await self.place.apply(deny + 'users = ["ann"]\n' + OPEN)

    async def dropped(self, number: int) -> None:
        """Wait until so many drops were counted, and see that there are no more."""
        counters = self.place.harness.counters
        await until(lambda: counters.dropped_not_authorized - self.dropped_before >= number)
        await self.place.is_well()
        assert counters.dropped_not_authorized - self.dropped_before == number


async def publish_both(case: Case, qos: int, *, retain: bool = False) -> None:
    other = await case.place.connect("bob")
    for topic_name in (case.shut, case.open):
        await other.publish(topic_name, topic_name.encode(), qos, retain=retain)
    await case.place.harness.delivered()


@each_version
@every_qos
async def test_live_messages(place: Town, level: int, qos: int) -> None:
    case = Case(place)
    ann = await place.connect(level=level)
    await ann.subscribe(case.all, qos)
    await case.take_away()
    await publish_both(case, qos)
    assert (await ann.message()).topic_name == case.open
    await ann.expect_nothing()
    await case.dropped(1)


@each_version
@every_qos
async def test_retained_messages(place: Town, level: int, qos: int) -> None:
    case = Case(place)
    await publish_both(case, qos, retain=True)
    await case.take_away()
    ann = await place.connect(level=level)
    await ann.subscribe(case.all, qos)
    assert (await ann.message()).topic_name == case.open
    await ann.expect_nothing()
    await case.dropped(1)


@each_version
@acknowledged
async def test_what_waits_for_a_client_that_is_away(place: Town, level: int, qos: int) -> None:
    case = Case(place)
    name = f"ann-away-{next(NUMBERS)}"
    kept: Any = {"properties": KEPT} if level == 5 else {}
    ann = await place.connect("ann", name, level=level, clean_start=False, **kept)
    await ann.subscribe(case.all, qos)
    await ann.disconnect()
    await place.harness.saved()
    await publish_both(case, qos)
    await case.take_away()
    ann = await place.connect("ann", name, level=level, clean_start=False, **kept)
    assert (await ann.message()).topic_name == case.open
    await ann.expect_nothing()
    await case.dropped(1)


@acknowledged
async def test_what_waits_for_room_in_a_window(place: Town, qos: int) -> None:
    case = Case(place)
    ann = await place.connect(properties={"receive_maximum": 1})
    await ann.subscribe(case.all, qos)
    other = await place.connect("bob")
    await other.publish(case.open, b"first", qos)
    first = await ann.expect(Publish)
    await publish_both(case, qos)
    await case.take_away()
    ann.send(Puback(first.packet_id) if qos == 1 else Pubrec(first.packet_id, 0x80))  # type: ignore[arg-type]
    assert (await ann.message()).topic_name == case.open
    await ann.expect_nothing()
    await case.dropped(1)


@acknowledged
async def test_what_is_in_flight(place: Town, qos: int) -> None:
    """It was sent and perhaps not received: it is not sent again, and its exchange ends."""
    case = Case(place)
    name = f"ann-flight-{next(NUMBERS)}"
    ann = await place.connect("ann", name, properties=KEPT)
    await ann.subscribe(case.all, qos)
    other = await place.connect("bob")
    for topic_name in (case.shut, case.open):
        await other.publish(topic_name, topic_name.encode(), qos)
    sent = await ann.expect(Publish)
    assert (sent.topic_name, (await ann.expect(Publish)).topic_name) == (case.shut, case.open)
    ann.cut()
    await until(lambda: not place.harness.gateway.sessions.is_connected("default", name))
    await case.take_away()
    ann = await place.connect("ann", name, clean_start=False, properties=KEPT)
    if qos == 2:
        assert (await ann.expect(Pubrel)).packet_id == sent.packet_id
        ann.send(Pubcomp(sent.packet_id))
    again = await ann.message()
    assert (again.topic_name, again.dup) == (case.open, True)
    await case.dropped(1)
    await ann.expect_nothing()


@acknowledged
async def test_history(place: Town, qos: int) -> None:
    case = Case(place)
    await publish_both(case, qos)
    await case.take_away()
    ann = await place.connect()
    ann.send(Subscribe(1, [Subscription(case.all, qos)], SINCE))
    await ann.expect(Suback)
    assert (await ann.message()).topic_name == case.open
    await ann.expect_nothing()
    await case.dropped(1)


@acknowledged
async def test_a_replay(place: Town, qos: int) -> None:
    case = Case(place)
    name = f"ann-replay-{next(NUMBERS)}"
    ann = await place.connect("ann", name)
    await ann.subscribe(case.all, qos)
    await case.take_away()
    again = stored(b"hidden", case.shut), stored(b"open", case.open)
    deliver(place.harness, *again, client_id=name)
    assert (await ann.message()).payload == b"open"
    await ann.expect_nothing()
    await case.dropped(1)


@acknowledged
async def test_a_share_group(place: Town, qos: int) -> None:
    """Its turn brings it a message that it may not have: that one is a drop."""
    case = Case(place)
    ann = await place.connect()
    await ann.subscribe(f"$share/g{next(NUMBERS)}/{case.all}", qos)
    await case.take_away()
    await publish_both(case, qos)
    assert (await ann.message()).topic_name == case.open
    await ann.expect_nothing()
    await case.dropped(1)


@pytest.mark.parametrize("retain", [False, True])
@every_qos
async def test_a_will(place: Town, qos: int, retain: bool) -> None:
    case = Case(place)
    other = await place.connect("bob")
    await other.subscribe(case.all, qos)
    ann = await place.connect(will=Will(case.shut, b"gone", qos, retain))
    await case.take_away("publish")
    ann.cut()
    await case.dropped(1)
    await other.expect_nothing()


@each_version
async def test_publishing_and_subscribing(place: Town, level: int) -> None:
    case = Case(place)
    ann = await place.connect(level=level)
    await case.take_away("publish", "subscribe", "receive")
    before = len(place.harness.inbound())
    ann.send(Publish(case.shut, b"late", 1, packet_id=9))
    answer = await ann.expect(Puback)
    assert answer.reason_code == (0x87 if level == 5 else 0)
    assert len(place.harness.inbound()) == before
    assert await ask(ann, case.shut) == [0x87 if level == 5 else 0x80]
    await place.is_well()
