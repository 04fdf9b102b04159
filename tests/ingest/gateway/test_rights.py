"""What clients may do: on CONNECT, PUBLISH, SUBSCRIBE, when messages are sent, and later."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ingest.gateway.settings.gateway import GatewaySettings
from ingest.protocol.packets import (
    Connack,
    Connect,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from ingest.protocol.reason_codes import (
    ConnackReasonCode,
    DisconnectReasonCode,
    PubackReasonCode,
    PubrecReasonCode,
    SubackReasonCode,
)
from mqlake.errors import SettingsError
from mqlake.records.audit import AUDIT_EVENT
from mqlake.records.messages import EVENTS
from mqlake.rights.files import RightsError
from mqlake.security.credentials import make_verifier, set_user
from mqlake.settings import load
from tests.ingest.gateway.harness import NAME, Client, Harness, running_gateway, turns, until
from tests.ingest.gateway.test_redelivery import deliver, stored

pytestmark = pytest.mark.anyio

PASSWORD = b"open sesame"
RULES = """
[roles]
operators = ["olga"]

[[rules]]
effect = "allow"
actions = ["connect"]
authenticated = true
client_ids = ["%u", "%u-*", "auto-*"]

[[rules]]
effect = "deny"
actions = ["receive"]
topics = ["plant/secret/#"]

[[rules]]
effect = "allow"
actions = ["publish", "subscribe", "receive"]
topics = ["plant/#"]
roles = ["operators"]

[[rules]]
effect = "allow"
actions = ["publish"]
topics = ["devices/%c/telemetry"]
qos = [0, 1]
retain = false

[[rules]]
effect = "allow"
actions = ["subscribe", "receive"]
topics = ["devices/%c/commands/#"]
"""
OPEN = """
[[rules]]
effect = "allow"
actions = ["connect"]

[[rules]]
effect = "allow"
actions = ["publish", "subscribe", "receive"]
topics = ["#"]
"""
USERS = ("ann", "olga", "otto", "+", "a/b", "a#")

each_version = pytest.mark.parametrize("level", [3, 4, 5])


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("credentials") / "users"
    for name in USERS:
        set_user(path, name, make_verifier(PASSWORD.decode(), iterations=4096))
    return path


@pytest.fixture
def rights(tmp_path: Path) -> Path:
    path = tmp_path / "rights.toml"
    write(path, RULES)
    return path


def write(path: Path, rules: str) -> None:
    path.write_text(rules)


@asynccontextmanager
async def gateway_with(rights: Path, credentials: Path, **more: Any) -> AsyncIterator[Harness]:
    async with running_gateway(rights_file=rights, credentials_file=credentials, **more) as harness:
        yield harness


async def connect(harness: Harness, name: str, client_id: str = "", **more: Any) -> Client:
    return await Client.connect(
        harness.port, client_id or name, username=name, password=PASSWORD, **more
    )


async def refused(harness: Harness, connect: Connect) -> ConnackReasonCode:
    client = await Client.open(harness.port, connect.protocol_level)
    client.send(connect)
    connack = await client.expect(Connack)
    assert await client.is_closed()
    return connack.reason_code


async def ask(client: Client, topic_filter: str, qos: int = 0) -> SubackReasonCode:
    packet_id = client.next_packet_id()
    client.send(Subscribe(packet_id, [Subscription(topic_filter, qos)]))
    suback = await client.expect(Suback)
    assert suback.packet_id == packet_id
    (code,) = suback.reason_codes
    return code


async def reload(
    harness: Harness, path: Path, rules: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    seen = caplog.messages.count("rights reloaded")
    write(path, rules)
    harness.gateway.reloading.begin()
    await until(lambda: caplog.messages.count("rights reloaded") > seen)


def dropped(harness: Harness) -> int:
    return harness.gateway.counters.dropped_not_authorized


# CONNECT


@each_version
async def test_a_client_identifier_is_had_by_whom_it_belongs_to(
    rights: Path, credentials: Path, level: int
) -> None:
    async with gateway_with(rights, credentials) as harness:
        ann = await connect(harness, "ann", "ann-1", level=level)
        for name, client_id in (("olga", "ann-1"), ("olga", "ann"), ("ann", "annx"), ("+", "ann")):
            asked = Connect(client_id, level, username=name, password=PASSWORD)
            assert await refused(harness, asked) is ConnackReasonCode.NOT_AUTHORIZED
        await ann.expect_nothing()  # nobody has taken her session over
        assert harness.gateway.counters.connections_refused == 4


async def test_an_identifier_from_the_gateway_is_asked_for_like_any(
    rights: Path, credentials: Path
) -> None:
    async with gateway_with(rights, credentials) as harness:
        client = await Client.open(harness.port)
        connack = await client.handshake("", username="ann", password=PASSWORD)
        assert connack.properties["assigned_client_identifier"].startswith("auto-")


@each_version
async def test_a_will_that_the_client_may_not_publish_is_refused(
    rights: Path, credentials: Path, level: int
) -> None:
    async with gateway_with(rights, credentials) as harness:
        for will in (
            Will("plant/1", b"x"),
            Will("devices/ann/telemetry", b"x", 1, retain=True),
            Will("devices/ann/telemetry", b"x", 2),
        ):
            asked = Connect("ann", level, username="ann", password=PASSWORD, will=will)
            assert await refused(harness, asked) is ConnackReasonCode.NOT_AUTHORIZED
        await connect(harness, "ann", level=level, will=Will("devices/ann/telemetry", b"x"))


# PUBLISH


async def test_what_one_may_not_publish_is_answered_and_goes_nowhere(
    rights: Path, credentials: Path
) -> None:
    async with gateway_with(rights, credentials) as harness:
        olga = await connect(harness, "olga")
        await olga.subscribe("plant/#")
        ann = await connect(harness, "ann")
        ann.send(Publish("plant/1", b"0"))
        ann.send(Publish("plant/1", b"1", 1, packet_id=1))
        puback = await ann.expect(Puback)
        assert puback.reason_code is PubackReasonCode.NOT_AUTHORIZED
        assert puback.properties["reason_string"] == "the client may not publish this"
        ann.send(Publish("plant/1", b"2", 2, packet_id=2))
        assert (await ann.expect(Pubrec)).reason_code is PubrecReasonCode.NOT_AUTHORIZED
        await ann.publish("devices/ann/telemetry", b"mine", 1)
        ann.send(Publish("devices/ann/telemetry", b"kept", 1, retain=True, packet_id=3))
        assert (await ann.expect(Puback)).reason_code is PubackReasonCode.NOT_AUTHORIZED
        ann.send(Publish("devices/olga/telemetry", b"not mine", 1, packet_id=4))
        assert (await ann.expect(Puback)).reason_code is PubackReasonCode.NOT_AUTHORIZED
        assert harness.gateway.counters.messages_refused == 5
        await olga.publish("plant/1", b"hers")
        assert (await olga.message()).payload == b"hers"
        await olga.expect_nothing()


@pytest.mark.parametrize("level", [3, 4])
async def test_older_versions_have_no_words_for_it(
    rights: Path, credentials: Path, level: int
) -> None:
    """The client is answered as if it were well, and stays. [MQTT311-3.3.5-2]"""
    async with gateway_with(rights, credentials) as harness:
        olga = await connect(harness, "olga")
        await olga.subscribe("plant/#")
        ann = await connect(harness, "ann", level=level)
        for qos in (0, 1, 2):
            await ann.publish("plant/1", b"no", qos)
        await ann.publish("devices/ann/telemetry", b"yes", 1)
        await olga.expect_nothing()


async def test_a_topic_alias_opens_nothing(rights: Path, credentials: Path) -> None:
    async with gateway_with(rights, credentials) as harness:
        ann = await connect(harness, "ann")
        await ann.publish("devices/ann/telemetry", b"1", 1, properties={"topic_alias": 1})
        await ann.publish("", b"2", 1, properties={"topic_alias": 1})
        ann.send(Publish("plant/1", b"3", 1, packet_id=8, properties={"topic_alias": 1}))
        assert (await ann.expect(Puback)).reason_code is PubackReasonCode.NOT_AUTHORIZED
        ann.send(Publish("", b"4", 1, packet_id=9, properties={"topic_alias": 1}))
        assert (await ann.expect(Puback)).reason_code is PubackReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize("name", ["+", "a/b", "a#"])
async def test_a_name_is_no_wildcard_and_no_level(
    rights: Path, credentials: Path, name: str
) -> None:
    async with gateway_with(rights, credentials) as harness:
        odd = await connect(harness, name)
        for topic in ("devices/ann/telemetry", "devices/a/b/telemetry"):
            odd.send(Publish(topic, b"x", 1, packet_id=1))
            assert (await odd.expect(Puback)).reason_code is PubackReasonCode.NOT_AUTHORIZED
        for topic_filter in (
            *("devices/+/commands/#", "devices/a/b/commands/#", "devices/#", "#", "+/+/#"),
            *("$share/g/devices/+/commands/#", "$share/g/#"),
        ):
            assert await ask(odd, topic_filter) is SubackReasonCode.NOT_AUTHORIZED


# SUBSCRIBE


async def test_what_one_may_not_ask_for_is_refused_and_the_rest_granted(
    rights: Path, credentials: Path
) -> None:
    async with gateway_with(rights, credentials) as harness:
        ann = await connect(harness, "ann")
        filters = ["plant/#", "devices/ann/commands/#", "#", "devices/+/commands/#", "$SYS/#"]
        ann.send(Subscribe(1, [Subscription(one, 1) for one in filters]))
        no = SubackReasonCode.NOT_AUTHORIZED
        assert (await ann.expect(Suback)).reason_codes == [no, 1, no, no, no]
        old = await connect(harness, "ann", "ann-old", level=4)
        assert await ask(old, "plant/#") == 0x80
        assert await ask(old, "devices/ann-old/commands/+") == 0


async def test_a_share_group_takes_who_may_have_all_of_it(rights: Path, credentials: Path) -> None:
    async with gateway_with(rights, credentials) as harness:
        olga = await connect(harness, "olga")
        # She would be sent what she may not have, and then nobody got it.
        assert await ask(olga, "$share/g/plant/#") is SubackReasonCode.NOT_AUTHORIZED
        assert await ask(olga, "$share/g/plant/1/#") == 0
        assert await ask(olga, "plant/#") == 0


# What is sent


@each_version
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_one_may_not_receive_is_dropped(
    rights: Path, credentials: Path, level: int, qos: int
) -> None:
    async with gateway_with(rights, credentials) as harness:
        olga = await connect(harness, "olga", level=level)
        await olga.subscribe("plant/#", qos)
        other = await connect(harness, "olga", "olga-2")
        await other.publish("plant/secret/1", b"hidden", qos)
        await other.publish("plant/open/1", b"open", qos)
        assert (await olga.message()).payload == b"open"
        await olga.expect_nothing()
        assert dropped(harness) == 1


async def test_a_retained_message_that_one_may_not_receive_is_dropped(
    rights: Path, credentials: Path
) -> None:
    async with gateway_with(rights, credentials) as harness:
        olga = await connect(harness, "olga")
        await olga.publish("plant/secret/1", b"hidden", 1, retain=True)
        await olga.publish("plant/open/1", b"open", 1, retain=True)
        await olga.subscribe("plant/#", 1)
        assert (await olga.message()).payload == b"open"
        await olga.expect_nothing()
        assert dropped(harness) == 1


# Rights that change


async def test_rights_that_are_taken_away_count_at_once(
    rights: Path, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(rights, OPEN)
    async with gateway_with(rights, credentials) as harness:
        otto = await connect(harness, "otto")
        await otto.subscribe("a/#", 1)
        await otto.publish("a/1", b"1", 1)
        assert (await otto.message()).payload == b"1"
        closed = OPEN.replace('topics = ["#"]', 'topics = ["b/#"]')
        await reload(harness, rights, closed, caplog)
        otto.send(Publish("a/1", b"2", 1, packet_id=9))
        assert (await otto.expect(Puback)).reason_code is PubackReasonCode.NOT_AUTHORIZED
        assert await ask(otto, "a/2") is SubackReasonCode.NOT_AUTHORIZED
        await reload(harness, rights, OPEN, caplog)
        await otto.publish("a/1", b"3", 1)
        assert (await otto.message()).payload == b"3"


async def test_what_waited_when_rights_were_taken_away_is_not_sent(
    rights: Path, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(rights, OPEN)
    async with gateway_with(rights, credentials) as harness:
        otto = await connect(harness, "otto", properties={"receive_maximum": 1})
        await otto.subscribe("a/#", 1)
        olga = await connect(harness, "olga")
        for number in range(4):
            await olga.publish(f"a/{number}", b"%d" % number, 1)
        first = await otto.expect(Publish)
        sender = harness.gateway.sessions.get("default", "otto").sender
        await until(lambda: sender.outbox.queued_count == 3)
        closed = OPEN.replace('actions = ["publish"', 'actions = ["subscribe"') + (
            '\n[[rules]]\neffect = "allow"\nactions = ["receive"]\ntopics = ["a/3"]\n'
        )
        closed = closed.replace('"subscribe", "subscribe", "receive"', '"subscribe"')
        await reload(harness, rights, closed, caplog)
        otto.send(Puback(first.packet_id))
        assert (await otto.message()).payload == b"3"
        await otto.expect_nothing()
        assert dropped(harness) == 2


async def test_a_session_that_comes_back_gets_what_it_may_have_now(
    rights: Path, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(rights, OPEN)
    kept = {"session_expiry_interval": 100}
    async with gateway_with(rights, credentials) as harness:
        otto = await connect(harness, "otto", clean_start=False, properties=kept)
        await otto.subscribe("plant/#", 1)
        await otto.disconnect()
        olga = await connect(harness, "olga")
        await olga.publish("plant/secret/1", b"hidden", 1)
        await olga.publish("plant/open/1", b"open", 1)
        deny = '[[rules]]\neffect = "deny"\nactions = ["receive"]\ntopics = ["plant/secret/#"]\n'
        await reload(harness, rights, deny + OPEN, caplog)
        otto = await connect(harness, "otto", clean_start=False, properties=kept)
        assert (await otto.message()).payload == b"open"
        await otto.expect_nothing()
        assert dropped(harness) == 1


DENIED = '[[rules]]\neffect = "deny"\nactions = ["receive"]\ntopics = ["plant/secret/#"]\n' + OPEN


async def test_history_is_asked_for_when_it_is_sent(
    rights: Path, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(rights, OPEN)
    async with gateway_with(rights, credentials) as harness:
        olga = await connect(harness, "olga")
        await olga.publish("plant/secret/1", b"hidden", 1)
        await olga.publish("plant/open/1", b"open", 1)
        await harness.delivered_count(2)
        await reload(harness, rights, DENIED, caplog)
        otto = await connect(harness, "otto")
        since: Any = {"user_property": [("mqlake-from", "2020-01-01T00:00:00Z")]}
        otto.send(Subscribe(1, [Subscription("plant/#", 1)], since))
        await otto.expect(Suback)
        assert (await otto.message()).payload == b"open"
        await otto.expect_nothing()
        assert dropped(harness) == 1


async def test_a_share_group_asks_for_the_rights_of_now(
    rights: Path, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(rights, OPEN)
    async with gateway_with(rights, credentials) as harness:
        otto, olga = await connect(harness, "otto"), await connect(harness, "olga")
        await otto.subscribe("$share/g/plant/#", 1)
        await reload(harness, rights, DENIED, caplog)
        await olga.publish("plant/secret/1", b"hidden", 1)
        await olga.publish("plant/open/1", b"open", 1)
        assert (await otto.message()).payload == b"open"
        await harness.delivered_count(2)
        await otto.expect_nothing()
        assert dropped(harness) == 1


async def test_a_replay_asks_for_the_rights_of_now(
    rights: Path, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(rights, OPEN)
    async with gateway_with(rights, credentials) as harness:
        otto = await connect(harness, "otto")
        await otto.subscribe("plant/#", 1)
        await reload(harness, rights, DENIED, caplog)
        again = stored(b"hidden", "plant/secret/1"), stored(b"open", "plant/open/1")
        deliver(harness, *again, client_id="otto")
        assert (await otto.message()).payload == b"open"
        await otto.expect_nothing()
        assert dropped(harness) == 1


async def test_a_will_is_asked_for_when_it_is_published(
    rights: Path, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(rights, OPEN)
    async with gateway_with(rights, credentials) as harness:
        olga = await connect(harness, "olga")
        await olga.subscribe("#")
        for name, topic in (("ann", "b/ann"), ("otto", "a/otto")):
            client = await connect(harness, name, will=Will(topic, name.encode()))
            await client.expect_nothing()
            if name == "ann":
                ann = client
        no_b = '[[rules]]\neffect = "deny"\nactions = ["publish"]\ntopics = ["b/#"]\n'
        await reload(harness, rights, no_b + OPEN, caplog)
        ann.cut()
        await until(lambda: dropped(harness) == 1)
        client.cut()
        assert (await olga.message()).payload == b"otto"
        await olga.expect_nothing()


async def test_who_may_not_have_its_identifier_any_more_has_to_go(
    rights: Path, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(rights, OPEN)
    async with gateway_with(rights, credentials) as harness:
        stranger = await connect(harness, "otto", "olga")
        olga = await connect(harness, "olga", "olga-1")
        await reload(harness, rights, RULES, caplog)
        await stranger.expect_disconnect(DisconnectReasonCode.NOT_AUTHORIZED)
        await olga.expect_nothing()


async def test_a_file_that_is_broken_leaves_the_rights_as_they_were(
    rights: Path, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_with(rights, credentials) as harness:
        ann = await connect(harness, "ann")
        for broken in ("rules = [", "", OPEN.replace("allow", "permit")):
            write(rights, broken)
            seen = caplog.messages.count("rights not reloaded, the old ones stay")
            harness.gateway.reloading.begin()
            await until(
                lambda seen=seen: (
                    caplog.messages.count("rights not reloaded, the old ones stay") > seen
                )
            )
            assert await ask(ann, "plant/#") is SubackReasonCode.NOT_AUTHORIZED
            assert await ask(ann, "devices/ann/commands/#") == 0


async def test_a_file_that_is_broken_lets_no_gateway_start(rights: Path, credentials: Path) -> None:
    write(rights, "rules = [")
    with pytest.RaisesGroup(RightsError, allow_unwrapped=True):
        async with gateway_with(rights, credentials):
            pass


def test_rights_need_users_who_are_known(rights: Path) -> None:
    with pytest.raises(SettingsError, match="rights_file is set, credentials_file is not"):
        load(GatewaySettings, rights_file=rights)


# What is told


async def denials(harness: Harness) -> list[dict[str, Any]]:
    """Return what was denied, added up."""
    harness.gateway.denials.record()
    harness.gateway.context.events.flush()
    await turns()
    found: list[dict[str, Any]] = []
    for record in harness.log.records(EVENTS):
        event = json.loads(record.value or b"")
        if event.pop("event") != "client.denied":
            continue
        assert record.key == f"default/{event['client_id']}".encode()
        assert event.pop("address") == "127.0.0.1"
        del event["v"], event["ts"]
        count = event.pop("count")
        before = next((one for one in found if {**one, "count": 0} == {**event, "count": 0}), None)
        if before is None:
            found.append({**event, "count": count})
        else:
            before["count"] += count
    return found


def denied(client_id: str, action: str, reason: str, **more: Any) -> dict[str, Any]:
    known = {"tenant": "default", "gateway": NAME, "topic": "", "count": 1, "username": "ann"}
    return {**known, "client_id": client_id, "action": action, "reason": reason, **more}


async def test_what_was_denied_is_told(rights: Path, credentials: Path) -> None:
    async with gateway_with(rights, credentials) as harness:
        ann = await connect(harness, "ann")
        for number in range(3):
            ann.send(Publish("plant/1", b"0", 1, packet_id=number + 1))
            await ann.expect(Puback)
        ann.send(Publish("$SYS/x", b"0", 1, packet_id=9))
        await ann.expect(Puback)
        await ask(ann, "devices/ann/commands/#")
        await ask(ann, "$share/g/plant/#")
        await refused(harness, Connect("olga", 5, username="ann", password=PASSWORD))
        await refused(harness, Connect("ann", 5, username="ann", password=b"guessed"))
        await refused(harness, Connect("ann", 5))
        told = await denials(harness)
        assert [one for one in told if one["action"] != "connect"] == [
            denied("ann", "publish", "the client may not publish this", topic="plant/1", count=3),
            denied("ann", "publish", "topics below $SYS are the server's", topic="$SYS/x"),
            denied(
                "ann",
                "subscribe",
                "the client may not subscribe to this",
                topic="$share/g/plant/#",
            ),
        ]
        first, second, third = (one for one in told if one["action"] == "connect")
        assert first == denied("olga", "connect", "it may not have this client identifier")
        assert (second["client_id"], second["username"]) == ("ann", "ann")
        assert (third["client_id"], third["username"]) == ("ann", None)
        assert harness.counters.attempts_denied == 8
        assert await denials(harness) == told, "each is told once"


async def test_a_client_that_has_to_go_is_told_of(
    rights: Path, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(rights, OPEN)
    async with gateway_with(rights, credentials) as harness:
        await connect(harness, "ann", "other")
        await reload(harness, rights, RULES, caplog)
        (told,) = await denials(harness)
        assert told == denied("other", "connect", "it may not have this client identifier any more")


async def test_a_file_that_is_read_again_is_told_in_the_audit_log(
    rights: Path, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_with(rights, credentials) as harness:
        await reload(harness, rights, OPEN, caplog)
        write(rights, "nonsense")
        harness.gateway.reloading.begin()
        await until(lambda: len(harness.events(AUDIT_EVENT)) == 4)
        told = [
            (one["caller"], one["target"], one["after"], one["detail"])
            for one in harness.events(AUDIT_EVENT)
        ]
        users = ("file", str(credentials), {"users": len(USERS)}, None)
        assert told[:3] == [users, ("file", str(rights), {"rules": 2}, None), users]
        assert told[3][:3] == ("file", str(rights), None)
        assert told[3][3].startswith("rights not reloaded, the old ones stay")
