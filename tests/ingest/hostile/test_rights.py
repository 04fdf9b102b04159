"""What nobody has a right to stays shut: odd topics and filters, names, wills, aliases."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ingest.protocol.packets import Connect, Puback, Publish, Pubrec, Will
from ingest.protocol.reason_codes import ConnackReasonCode
from tests.ingest.gateway.harness import Client
from tests.ingest.hostile.town import PASSWORD, RULES, Town, ask, refused, town

pytestmark = pytest.mark.anyio

OWN = """
[[rules]]
effect = "allow"
actions = ["connect"]
authenticated = true
client_ids = ["%u", "%u-*"]

[[rules]]
effect = "deny"
actions = ["publish", "subscribe", "receive"]
topics = ["plant/secret/#"]

[[rules]]
effect = "allow"
actions = ["publish", "subscribe", "receive"]
topics = ["devices/%c/#", "users/%u/#", "plant/#"]
"""
NOT_AUTHORIZED = 0x87


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    async with town(tmp_path_factory.mktemp("town"), RULES + OWN) as found:
        yield found


FILTERS = (
    *("#", "+", "/#", "+/#", "+/+", "+/+/+", "+/ann/#", "/+", "+/", "+/ann/+", "devices/+/x"),
    *("devices", "devices/", "devices/#", "devices/+", "devices/+/#", "devices/+/+", "users/+/#"),
    *("/devices/ann/x", "//devices/ann", "devices//ann/x", "devices/ann ", "devices/ ann/x"),
    *("devices/bob/#", "devices/ANN/#", "devices/annn/#", "devices/an/#", "devices/ann-1/x"),
    *("users/bob/#", "users/#", "users/+", "users/%u/#", "devices/%c/#", "devices/*/x"),
    *("devices/a\u200bnn/#", "devices/\u0430nn/#", "devices/ann\u0301/#", "../devices/ann/x"),
    *("devices/bob/../ann/x", "plant/secret/#", "plant/secret", "plant/secret/a", "plant/#"),
    *("plant/+", "plant/+/a", "plant/+/#", "+/secret/#", "healthy/#", "healthy/round", "+/round"),
    *("default/healthy/round", "acme/healthy/#", "$SYS/#", "$SYS/+/+", "$SYS/broker/version"),
    *("$events/#", "$mqlake/#", "$shared/x", "$delayed/1/healthy/x", "$queue/healthy/#", "$SYS"),
)
"""Of each a part at least is nobody's, or somebody else's."""
GRANTED = (
    "devices/ann/#",
    "devices/ann/+",
    "devices/ann",
    "users/ann/#",
    "plant/open",
    "plant/a/b",
)


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("topic_filter", FILTERS)
async def test_no_filter_reaches_beyond_what_one_may_have(
    place: Town, topic_filter: str, level: int
) -> None:
    client = await place.connect("ann", "ann", level=level)
    refusal = NOT_AUTHORIZED if level == 5 else 0x80
    assert await ask(client, topic_filter) == [refusal]
    assert await ask(client, "devices/ann/x", topic_filter, "plant/open") == [0, refusal, 0]
    await place.is_well()
    await client.expect_nothing()


@pytest.mark.parametrize("topic_filter", [one for one in FILTERS if not one.startswith("$")])
async def test_no_share_group_reaches_further(place: Town, topic_filter: str) -> None:
    client = await place.connect("ann", "ann")
    assert await ask(client, f"$share/g/{topic_filter}") == [NOT_AUTHORIZED]
    assert await ask(client, "$share/g/devices/ann/#") == [0]
    await place.is_well()
    await client.expect_nothing()


@pytest.mark.parametrize("topic_filter", GRANTED)
async def test_what_one_may_have_is_granted(place: Town, topic_filter: str) -> None:
    client = await place.connect("ann", "ann")
    assert await ask(client, topic_filter) == [0]


TOPICS = tuple(one for one in FILTERS if not set("+#").intersection(one) and one[0] != "$")


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic_name", TOPICS)
async def test_nothing_is_published_where_one_may_not(
    place: Town, topic_name: str, qos: int
) -> None:
    client = await place.connect("ann", "ann")
    before = len(place.harness.inbound())
    client.send(Publish(topic_name, b"forged", qos, retain=True, packet_id=1 if qos else 0))
    if qos:
        answer: Any = await client.expect(Puback if qos == 1 else Pubrec)
        assert answer.reason_code == NOT_AUTHORIZED
    await client.expect_nothing()
    assert len(place.harness.inbound()) == before
    await place.is_well()


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_topic_alias_hides_no_topic(place: Town, qos: int) -> None:
    client = await place.connect("ann", "ann")
    alias: Any = {"topic_alias": 1}
    packet_id: Any = {"packet_id": 7} if qos else {}
    client.send(Publish("plant/open", b"", qos, properties=alias, **packet_id))
    client.send(Publish("healthy/round", b"forged", qos, properties=alias, **packet_id))
    client.send(Publish("", b"forged", qos, properties=alias, **packet_id))
    if qos:
        codes = [(await client.expect(Puback)).reason_code for _ in range(3)]
        assert sorted(codes) == [0, NOT_AUTHORIZED, NOT_AUTHORIZED]
    await client.expect_nothing()
    await place.is_well()


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("topic_name", TOPICS)
async def test_a_will_goes_nowhere_else_either(place: Town, topic_name: str, level: int) -> None:
    will = Will(topic_name, b"forged", 1, True)
    connect = Connect("ann", level, username="ann", password=PASSWORD, will=will)
    await refused(place.port, connect, ConnackReasonCode.NOT_AUTHORIZED)
    await place.is_well()


@pytest.mark.parametrize("name", ["+", "a#", "a/b", "$SYS", "%c"])
@pytest.mark.parametrize("place_of_name", ["devices", "users"])
async def test_a_name_opens_no_more_than_itself(place: Town, name: str, place_of_name: str) -> None:
    """Names that look like wildcards, levels, the server's topics, or another placeholder."""
    client = await place.connect(name, name)
    for topic_filter in (f"{place_of_name}/bob/x", f"{place_of_name}/#", "healthy/round", "#"):
        assert await ask(client, topic_filter) == [NOT_AUTHORIZED]
    if name not in {"$SYS", "%c", "a#"}:  # a level like any other
        assert await ask(client, f"{place_of_name}/{name}/x") == [NOT_AUTHORIZED]
    await place.is_well()


CLIENT_IDS = (
    *("bob", "bob-1", "ann2", "an", "ANN", " ann", "ann ", "Ann-1", "+", "#", "*", "%u", "%u-1"),
    *("ann\u200b", "\u0430nn", "ann/1", "ann_1", "-ann", "healthy", "mqlake-api", "rule:x", "$SYS"),
)


@pytest.mark.parametrize("client_id", CLIENT_IDS)
async def test_no_client_identifier_is_had_that_is_anothers(place: Town, client_id: str) -> None:
    connect = Connect(client_id, 5, username="ann", password=PASSWORD)
    await refused(place.port, connect, ConnackReasonCode.NOT_AUTHORIZED)
    await place.is_well()


async def test_one_who_is_denied_often_harms_nobody(place: Town) -> None:
    client = await place.connect("ann", "ann")
    for number in range(300):
        client.send(Publish("healthy/round", b"%d" % number))
    await client.expect_nothing()
    other = await Client.connect(place.port, "ann-1", username="ann", password=PASSWORD)
    await other.publish("plant/open", b"", 1)
    await place.is_well()
