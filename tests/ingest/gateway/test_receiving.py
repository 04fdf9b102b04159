from pathlib import Path
from typing import Any

import pytest

from ingest.protocol.encoder import encode
from ingest.protocol.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Will,
)
from ingest.protocol.reason_codes import (
    DisconnectReasonCode,
    PubackReasonCode,
    PubcompReasonCode,
    PubrecReasonCode,
)
from mqlake.errors import LogError
from mqlake.records.messages import INBOUND, decode_message
from mqlake.settings import LogDiskSettings
from tests.ingest.gateway.harness import Client, running_gateway, until

pytestmark = pytest.mark.anyio

FEW = 8
"""Records that a small queue to the log holds; what a gateway says of itself takes its share."""
MANY = 50

LEVELS = pytest.mark.parametrize("level", [3, 4, 5], ids=["3.1", "3.1.1", "5.0"])


@LEVELS
async def test_a_message_is_in_the_log_as_it_was_published(level: int) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level, username="al")
        properties: Any = {"content_type": "t", "user_property": [("a", "b"), ("a", "c")]}
        await client.publish(
            "a/b", b"payload", 2, retain=level < 5, properties=properties if level == 5 else {}
        )
        (record,) = harness.inbound()
        message = decode_message(
            record.key or b"", record.value, record.headers, record.timestamp_ms
        )
        assert (message.tenant, message.topic_name, message.payload) == (
            "default",
            "a/b",
            b"payload",
        )
        assert (message.qos, message.retain, message.dup) == (2, level < 5, False)
        assert (message.client_id, message.username) == ("alice", "al")
        assert message.origin == "local/gateway-1"
        assert message.protocol_level == level
        assert message.properties == (properties if level == 5 else None)
        assert len(message.message_id) == 16


@pytest.mark.clause("MQTT5-4.3.2-4", "MQTT5-4.3.3-8")
@pytest.mark.parametrize(("qos", "answer"), [(1, Puback), (2, Pubrec)])
@LEVELS
async def test_nothing_is_acknowledged_before_the_log_has_it(
    level: int, qos: int, answer: type[Puback] | type[Pubrec]
) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        harness.log.hold_reports()
        client.send(Publish("a", b"x", qos, packet_id=3))
        await until(lambda: harness.writer.queued())
        await client.expect_nothing()
        harness.log.release_reports()
        assert (await client.expect(answer)).packet_id == 3
        assert len(harness.inbound()) == 1


@LEVELS
async def test_a_repeated_qos_2_message_is_stored_once(level: int) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        publish = Publish("a", b"x", 2, packet_id=3)
        again = Publish("a", b"x", 2, dup=True, packet_id=3)
        harness.log.hold_reports()
        client.send(publish, again)
        await client.expect_nothing()
        harness.log.release_reports()
        assert await client.expect(Pubrec) == Pubrec(3)
        client.send(again)
        assert await client.expect(Pubrec) == Pubrec(3)
        client.send(Pubrel(3))
        assert await client.expect(Pubcomp) == Pubcomp(3)
        assert len(harness.inbound()) == 1
        await client.publish("a", b"y", 2)
        assert len(harness.inbound()) == 2


@LEVELS
async def test_a_pubrel_for_nothing_is_answered(level: int) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        client.send(Pubrel(9))
        expected = (
            PubcompReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            if level == 5
            else PubcompReasonCode.SUCCESS
        )
        assert await client.expect(Pubcomp) == Pubcomp(9, expected)


async def test_a_pubrel_before_its_pubrec_spoils_nothing() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=4)
        harness.log.hold_reports()
        client.send(Publish("a", b"1", 2, packet_id=3), Pubrel(3))
        assert await client.expect(Pubcomp) == Pubcomp(3)
        harness.log.release_reports()
        assert await client.expect(Pubrec) == Pubrec(3)
        client.send(Pubrel(3), Publish("a", b"2", 2, packet_id=3))
        await client.expect(Pubcomp)
        await client.expect(Pubrec)
        assert [record.value for record in harness.inbound()] == [b"1", b"2"]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("level", [4, 5])
async def test_reading_stops_while_the_log_is_full_and_nothing_is_lost(
    level: int, qos: int
) -> None:
    async with running_gateway(max_queued_records=5) as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        other = await Client.connect(harness.port, "other", level=level)
        harness.log.hold_reports()
        for number in range(100):
            packet_id = number + 1 if qos else 0
            client.send(Publish("a", b"%d" % number, qos, packet_id=packet_id))
        await until(lambda: harness.gateway.log_room)
        other.send(Publish("b", b"other", 1, packet_id=1))
        await until(lambda: len(harness.gateway.log_room) == 2)
        assert harness.writer.queued() == 5
        assert harness.inbound() == []
        harness.log.release_reports()
        await until(lambda: len(harness.inbound()) == 101)
        mine = [record.value for record in harness.inbound() if record.value != b"other"]
        assert mine == [b"%d" % number for number in range(100)]
        if qos:
            kind: type[Puback] | type[Pubrec] = Puback if qos == 1 else Pubrec
            answers = [await client.expect(kind) for _ in range(100)]
            assert [one.packet_id for one in answers] == list(range(1, 101))
        await other.expect(Puback)
        await client.expect_nothing()


async def test_a_client_that_is_closed_while_it_waits_for_the_log_is_forgotten() -> None:
    async with running_gateway(max_queued_records=FEW) as harness:
        client = await Client.connect(harness.port, "alice")
        harness.log.hold_reports()
        client.send(*(Publish("a", b"%d" % number) for number in range(MANY)))
        await until(lambda: harness.gateway.log_room)
        await Client.connect(harness.port, "alice")
        harness.log.release_reports()
        await until(lambda: not (harness.gateway.log_room or harness.writer.queued()))
        stored = [record.value for record in harness.inbound()]
        assert 0 < len(stored) <= FEW
        assert stored == [b"%d" % number for number in range(len(stored))]


async def test_a_will_waits_for_room_in_the_log() -> None:
    async with running_gateway(max_queued_records=FEW) as harness:
        client = await Client.connect(harness.port, "alice", will=Will("w", b"gone"))
        other = await Client.connect(harness.port, "other")
        harness.log.hold_reports()
        other.send(*(Publish("a", b"%d" % number) for number in range(MANY)))
        await until(lambda: harness.gateway.log_room)
        client.cut()
        await until(lambda: not harness.gateway.session_log.is_saved)
        harness.log.release_reports()
        await until(lambda: len(harness.inbound()) == MANY + 1)
        assert b"gone" in {record.value for record in harness.inbound()}


async def test_a_will_that_waits_for_room_is_stored_before_the_gateway_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ingest.gateway.process.process.SHUTDOWN_SECONDS", 0.2)
    async with running_gateway(max_queued_records=FEW) as harness:
        client = await Client.connect(harness.port, "alice", will=Will("w", b"gone"))
        await Client.connect(harness.port, "bob", will=Will("w", b"gone too"))
        harness.log.hold_reports()
        client.send(*(Publish("a", b"%d" % number) for number in range(MANY)))
        await until(lambda: harness.gateway.log_room)
        harness.stop.set()
        await until(lambda: not harness.gateway.connections)
    values = {record.value for record in harness.inbound()}
    assert values >= {b"0", b"gone", b"gone too"}


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback), (2, Pubrec)])
@pytest.mark.parametrize("definite", [True, False])
async def test_a_message_the_log_does_not_take_is_refused_in_5_0(
    qos: int, answer: type[Puback] | type[Pubrec], definite: bool
) -> None:
    async with running_gateway(receive_maximum=1) as harness:
        client = await Client.connect(harness.port, "alice")
        for _ in range(3):  # each gives its place in the window back
            harness.log.fail_next(LogError("no space", definite=definite), log_topic=INBOUND)
            client.send(Publish("a", b"x", qos, packet_id=3))
            refusal = await client.expect(answer)
            assert refusal.reason_code == PubackReasonCode.QUOTA_EXCEEDED
            assert refusal.properties == {"reason_string": "no space"}
        await client.publish("a", b"x", qos)
        assert harness.counters.messages_refused == 3


async def test_reasons_are_not_told_to_a_client_that_does_not_want_them() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(
            harness.port, "alice", properties={"request_problem_information": 0}
        )
        harness.log.fail_next(LogError("no space", definite=True), log_topic=INBOUND)
        client.send(Publish("a", b"x", 1, packet_id=3))
        assert await client.expect(Puback) == Puback(3, PubackReasonCode.QUOTA_EXCEEDED)


@pytest.mark.clause("MQTT5-3.4.2-2")
@pytest.mark.clause("MQTT5-3.5.2-2")
async def test_reasons_are_not_told_to_a_client_for_which_they_are_too_long() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", properties={"maximum_packet_size": 40})
        error = LogError("no space " * 10, definite=True)
        harness.log.fail_next(error, count=2, log_topic=INBOUND)
        client.send(Publish("a", b"x", 1, packet_id=3), Publish("a", b"x", 2, packet_id=4))
        assert await client.expect(Puback) == Puback(3, PubackReasonCode.QUOTA_EXCEEDED)
        assert await client.expect(Pubrec) == Pubrec(4, PubrecReasonCode.QUOTA_EXCEEDED)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("level", [3, 4])
async def test_a_message_the_log_does_not_take_ends_a_3x_connection(level: int, qos: int) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        harness.log.fail_next(LogError("no", definite=True), log_topic=INBOUND)
        client.send(Publish("a", b"x", qos, packet_id=3))
        assert await client.is_closed()
        assert harness.inbound() == []


@pytest.mark.parametrize("level", [4, 5])
async def test_a_message_that_can_never_be_stored_is_refused(level: int) -> None:
    async with running_gateway(max_record_bytes=4_000, receive_maximum=1) as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        client.send(Publish("a", bytes(5_000)))
        await client.expect_nothing()
        client.send(Publish("a", bytes(5_000), 1, packet_id=1))
        if level == 4:
            assert await client.is_closed()
        else:
            refusal = await client.expect(Puback)
            assert refusal.reason_code is PubackReasonCode.QUOTA_EXCEEDED
        assert harness.counters.messages_refused == 2


async def test_a_lost_qos_0_message_is_counted() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        harness.log.fail_next(LogError("no", definite=True), log_topic=INBOUND)
        client.send(Publish("a", b"x"))
        await until(lambda: harness.counters.messages_refused == 1)


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_will_that_the_log_did_not_answer_for_comes_once(is_there: bool) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", will=Will("w", b"gone"))
        publish = harness.gateway.publisher.publish
        error = LogError("timed out", definite=False)

        def publish_once(*arguments: Any) -> None:
            harness.gateway.publisher.publish = publish  # type: ignore[method-assign]
            if is_there:
                harness.log.fail_next(error, log_topic=INBOUND)
                publish(*arguments)
            else:
                arguments[-1](-1, -1, error)

        harness.gateway.publisher.publish = publish_once  # type: ignore[method-assign, assignment]
        client.cut()
        await until(lambda: len(harness.gateway.sessions) == 0)
        assert [record.value for record in harness.inbound()] == [b"gone"]


async def test_what_is_looked_for_is_not_thought_to_be_behind_later_messages() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(
            harness.port, "alice", properties={"session_expiry_interval": 60}
        )
        publisher, asked = harness.gateway.publisher, []
        harness.gateway.lookup.ask = lambda *search: asked.append(search)  # type: ignore[method-assign]
        publish: Any = publisher.publish

        def publish_once(*arguments: Any) -> None:
            publisher.publish = publish  # type: ignore[method-assign]
            report, error = arguments[-1], LogError("timed out", definite=False)

            def unsure(partition: int, offset: int, _: LogError | None) -> None:
                report(partition, offset, error)

            publish(*arguments[:4], unsure)

        publisher.publish = publish_once  # type: ignore[method-assign, assignment]
        client.send(Publish("a", b"x", 2, packet_id=1))
        await until(lambda: len(asked) == 1)
        client.send(Publish("a", b"y", 2, packet_id=2))
        assert await client.expect(Pubrec) == Pubrec(2)
        unsure, _ = harness.inbound()
        progress = harness.gateway.sessions.get("default", "alice").snapshot()
        assert progress.storing == [1]
        assert progress.storing_from[unsure.partition] <= unsure.offset


async def test_the_next_message_is_not_taken_for_one_that_was_looked_for() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(
            harness.port, "alice", properties={"session_expiry_interval": 60}
        )
        publisher = harness.gateway.publisher
        publish: Any = publisher.publish

        def publish_once(*arguments: Any) -> None:
            publisher.publish = publish  # type: ignore[method-assign]
            report, error = arguments[-1], LogError("timed out", definite=False)

            def unsure(partition: int, offset: int, _: LogError | None) -> None:
                report(partition, offset, error)

            publish(*arguments[:4], unsure)

        publisher.publish = publish_once  # type: ignore[method-assign, assignment]
        await client.publish("a", b"x", 2)
        harness.log.hold_reports()
        client.send(Publish("a", b"y", 2, packet_id=client.next_packet_id()))
        session = harness.gateway.sessions.get("default", "alice")
        await until(session.incoming.storing)
        first = harness.inbound()[0]
        assert session.snapshot().storing_from[first.partition] > first.offset


async def test_publishers_are_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    disk = LogDiskSettings(folder=tmp_path, min_free_bytes=0)
    async with running_gateway(log_disk=disk) as harness:
        client = await Client.connect(harness.port, "alice")
        await client.publish("a", b"x", 1)
    async with running_gateway(log_disk=disk) as harness:
        harness.gateway.publisher.is_refusing = "0 MiB free"
        client = await Client.connect(harness.port, "alice")
        older = await Client.connect(harness.port, "bob", level=4)
        client.send(Publish("a", b"x", 1, packet_id=3))
        refusal = await client.expect(Puback)
        assert refusal == Puback(
            3, PubackReasonCode.QUOTA_EXCEEDED, {"reason_string": "0 MiB free"}
        )
        older.send(Publish("a", b"x", 1, packet_id=3))
        assert await older.is_closed()
        assert harness.inbound() == []
        await until(lambda: not harness.gateway.publisher.is_refusing)  # looks again each second
        await client.publish("a", b"x", 1)


@LEVELS
@pytest.mark.parametrize("qos", [1, 2])
async def test_more_than_the_window_is_held_back_or_refused(level: int, qos: int) -> None:
    async with running_gateway(receive_maximum=4) as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        harness.log.hold_reports()
        client.send(*(Publish("a", b"", qos, packet_id=number + 1) for number in range(20)))
        if level == 5:
            await client.expect_disconnect(DisconnectReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
            return
        await until(lambda: harness.writer.queued() == 4)
        harness.log.release_reports()
        kind: type[Puback] | type[Pubrec] = Puback if qos == 1 else Pubrec
        answers = [await client.expect(kind) for _ in range(20)]
        assert [one.packet_id for one in answers] == list(range(1, 21))
        if qos == 2:
            client.send(*(Pubrel(number + 1) for number in range(20)))
            for number in range(20):
                assert await client.expect(Pubcomp) == Pubcomp(number + 1)


async def test_a_3x_client_refused_at_the_edge_of_its_window_is_closed(tmp_path: Path) -> None:
    async with running_gateway(receive_maximum=1) as harness:
        harness.gateway.publisher.is_refusing = "0 MiB free"
        client = await Client.connect(harness.port, "alice", level=4)
        client.send(Publish("a", b"x", 1, packet_id=1))
        assert await client.is_closed()
        await until(lambda: not harness.gateway.connections)


@pytest.mark.parametrize(
    ("publish", "reason_code"),
    [
        (
            Publish("a", b"\xff", properties={"payload_format_indicator": 1}),
            DisconnectReasonCode.PAYLOAD_FORMAT_INVALID,
        ),
        (
            Publish("a", b"", properties={"topic_alias": 65}),
            DisconnectReasonCode.TOPIC_ALIAS_INVALID,
        ),
        (Publish("", b"", properties={"topic_alias": 1}), DisconnectReasonCode.PROTOCOL_ERROR),
    ],
    ids=["no text", "alias too high", "alias not set"],
)
async def test_what_a_client_may_not_publish_ends_the_connection(
    publish: Publish, reason_code: DisconnectReasonCode
) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(publish)
        await client.expect_disconnect(reason_code)
        assert harness.inbound() == []


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_payload_that_is_not_the_text_it_is_said_to_be_is_refused(qos: int) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        for payload in (b"\xff", b"text"):
            client.send(
                Publish("a", payload, qos, packet_id=7, properties={"payload_format_indicator": 1})
            )
            answer = await client.receive()
            assert isinstance(answer, Puback | Pubrec)
            assert answer.reason_code == (0x99 if payload == b"\xff" else 0)
        assert [record.value for record in harness.inbound()] == [b"text"]


async def test_nobody_publishes_to_the_topics_of_the_server() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(Publish("$SYS/a", b""), Publish("$SYS/a", b"", 1, packet_id=1))
        assert (await client.expect(Puback)).reason_code is PubackReasonCode.NOT_AUTHORIZED
        client.send(Publish("$SYS/a", b"", 2, packet_id=1))
        assert (await client.expect(Pubrec)).reason_code is PubrecReasonCode.NOT_AUTHORIZED
        old = await Client.connect(harness.port, "bob", level=4)
        await old.publish("$SYS/a", b"", 1)
        await old.publish("$SYS/a", b"", 2)
        assert harness.inbound() == []


async def test_a_wildcard_in_a_topic_name_ends_the_connection() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        client.send_bytes(encode(Publish("aXb", b""), 5).replace(b"X", b"+"))
        await client.expect_disconnect(DisconnectReasonCode.MALFORMED_PACKET)


async def test_topic_aliases_work() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.publish("a/b", b"1", 1, properties={"topic_alias": 1})
        await client.publish("", b"2", 1, properties={"topic_alias": 1})
        records = harness.inbound()
        assert [(one.key, one.value) for one in records] == [
            (b"default/a/b", b"1"),
            (b"default/a/b", b"2"),
        ]
        assert all("properties" not in dict(one.headers) for one in records)
