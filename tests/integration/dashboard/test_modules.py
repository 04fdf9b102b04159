"""Modules of the dashboard that need no page, run in the browser: what they compute is compared."""

from typing import Any

import pytest

from ingest.protocol.decoder import Decoder
from ingest.protocol.encoder import encode
from ingest.protocol.packets import (
    MQTT_5_0,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from ingest.protocol.reason_codes import (
    DisconnectReasonCode,
    PubackReasonCode,
    SubackReasonCode,
    UnsubackReasonCode,
)
from tests.integration.dashboard.browser import Dashboard

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

SENT: dict[str, Packet] = {
    "connect({clientId: 'c', cleanStart: true, keepAlive: 30})": Connect(
        "c", keep_alive=30, properties={"receive_maximum": 100}
    ),
    "connect({clientId: 'ü', username: 'u', password: 'p', cleanStart: false, keepAlive: 0,"
    " sessionExpiry: 4294967295,"
    " will: {topic: 'w', payload: new Uint8Array([1, 2]), qos: 1, retain: true}})": Connect(
        "ü",
        clean_start=False,
        will=Will("w", b"\x01\x02", 1, retain=True),
        username="u",
        password=b"p",
        properties={"session_expiry_interval": 4_294_967_295, "receive_maximum": 100},
    ),
    "publish({topic: 'a/b', payload: new Uint8Array(0)})": Publish("a/b", b""),
    "publish({topic: 'a', payload: new Uint8Array(70000), qos: 2, retain: true, packetId: 65535,"
    " properties: {content_type: 'x', user_property: [['a', '1'], ['a', '2']]}})": Publish(
        "a",
        bytes(70_000),
        2,
        retain=True,
        packet_id=65_535,
        properties={"content_type": "x", "user_property": [("a", "1"), ("a", "2")]},
    ),
    "acknowledge('PUBACK', 7)": Puback(7),
    "acknowledge('PUBREC', 7, 0x97)": Pubrec(7, 0x97),  # type: ignore[arg-type]
    "acknowledge('PUBREL', 258)": Pubrel(258),
    "subscribe({packetId: 3, filter: 'a/#', qos: 1, noLocal: true, retainHandling: 2})": Subscribe(
        3, [Subscription("a/#", 1, no_local=True, retain_handling=2)]
    ),
    "unsubscribe({packetId: 4, filter: 'a/#'})": Unsubscribe(4, ["a/#"]),
    "PINGREQ": Pingreq(),
    "DISCONNECT": Disconnect(),
}
"""What a script makes, and the packet that it is."""

RECEIVED: list[tuple[Packet, dict[str, Any]]] = [
    (
        Connack(
            session_present=True,
            properties={"assigned_client_identifier": "x", "server_keep_alive": 9},
        ),
        {
            "name": "CONNACK",
            "sessionPresent": True,
            "reasonCode": 0,
            "properties": {"assigned_client_identifier": "x", "server_keep_alive": 9},
        },
    ),
    (
        Publish("a/ü", b"\x00\xff", 1, retain=True, dup=True, packet_id=300),
        {
            "name": "PUBLISH",
            "qos": 1,
            "retain": True,
            "dup": True,
            "topic": "a/ü",
            "packetId": 300,
            "properties": {},
            "payload": [0, 255],
        },
    ),
    (
        Puback(5, PubackReasonCode.NO_MATCHING_SUBSCRIBERS),
        {"name": "PUBACK", "packetId": 5, "reasonCode": 16, "properties": {}},
    ),
    (
        Suback(6, [SubackReasonCode.GRANTED_QOS_2], {"reason_string": "so"}),
        {
            "name": "SUBACK",
            "packetId": 6,
            "reasonCodes": [2],
            "properties": {"reason_string": "so"},
        },
    ),
    (
        Unsuback(6, [UnsubackReasonCode.NO_SUBSCRIPTION_EXISTED]),
        {"name": "UNSUBACK", "packetId": 6, "reasonCodes": [17], "properties": {}},
    ),
    (Pingresp(), {"name": "PINGRESP"}),
    (
        Disconnect(DisconnectReasonCode.ADMINISTRATIVE_ACTION),
        {"name": "DISCONNECT", "reasonCode": 0x98, "properties": {}},
    ),
]


def run(dashboard: Dashboard, module: str, expression: str, argument: Any = None) -> Any:
    """Return an expression over what a module exports, which is `m`; `x` is the argument."""
    script = f"async (x) => {{ const m = await import('{module}'); return {expression}; }}"
    return dashboard.page.evaluate(script, argument)


@pytest.fixture
def loaded(dashboard: Dashboard) -> Dashboard:
    dashboard.open("alarms")
    return dashboard


def test_packets_are_those_of_the_protocol(loaded: Dashboard) -> None:
    for expression, expected in SENT.items():
        made = run(loaded, "/dashboard/core/mqtt_packets.js", f"Array.from(m.{expression})")
        decoder = Decoder(MQTT_5_0)
        if isinstance(expected, Connect):
            decoder = Decoder()
        decoder.receive_data(bytes(made))
        assert decoder.next_packet() == expected, expression
        assert decoder.buffered_bytes == 0


@pytest.mark.parametrize("chunk_bytes", [1, 3, 10_000])
def test_packets_are_understood_however_they_are_cut(loaded: Dashboard, chunk_bytes: int) -> None:
    data = b"".join(encode(packet, MQTT_5_0) for packet, _ in RECEIVED)
    chunks = [list(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes)]
    shown = """(() => {
      const decoder = new m.Decoder();
      const found = x.flatMap((chunk) => decoder.receive(Uint8Array.from(chunk)));
      return found.map((one) => (one.payload ? { ...one, payload: [...one.payload] } : one));
    })()"""
    found = run(loaded, "/dashboard/core/mqtt_packets.js", shown, chunks)
    assert found == [expected for _, expected in RECEIVED]


@pytest.mark.parametrize(
    "data", [b"\x30\xff\xff\xff\xff\x01", b"\x40\x01\x00", b"\x30\x04\x00\x01\xff\x00", b"\x10\x00"]
)
def test_what_is_no_packet_is_refused(loaded: Dashboard, data: bytes) -> None:
    refused = """(() => {
      try { new m.Decoder().receive(Uint8Array.from(x)); return false; }
      catch (error) { return error instanceof m.MalformedPacket; }
    })()"""
    assert run(loaded, "/dashboard/core/mqtt_packets.js", refused, list(data)) is True


def test_sql_keeps_its_text_and_gets_its_colours(loaded: Dashboard) -> None:
    text = "SELECT payload.from AS a, avg(x) -- why\nFROM 'plant/''+' WHERE t > 1.5e3 /* open"
    pieces = run(loaded, "/dashboard/core/sql.js", "m.tokens(x)", text)
    assert "".join(piece for _, piece in pieces) == text
    coloured = [(kind, piece) for kind, piece in pieces if kind]
    assert coloured == [
        ("keyword", "SELECT"),
        ("keyword", "AS"),
        ("function", "avg"),
        ("comment", "-- why"),
        ("keyword", "FROM"),
        ("text", "'plant/''+'"),
        ("keyword", "WHERE"),
        ("number", "1.5e3"),
        ("comment", "/* open"),
    ]


def test_alarms_are_what_somebody_must_look_at(loaded: Dashboard) -> None:
    process = {"name": "streaming", "healthy": False, "detail": "starting Spark", "restarts": 1}
    gateway = {"name": "gateway-1", "alive": True, "state": "draining"}
    query = {"name": "history", "rule": None, "lag_records": 60_000}
    metrics = {
        "processes": [process, {**process, "name": "api", "healthy": True}],
        "gateways": [gateway, {**gateway, "name": "gateway-2", "alive": False}],
        "queries": [query, {**query, "lag_records": None}],
        "dropped_per_second": 2.5,
    }
    found = run(loaded, "/dashboard/core/alarms.js", "m.alarmsOf(x)", metrics)
    assert [(one["kind"], one["what"]) for one in found] == [
        ("bad", "streaming is not healthy"),
        ("warn", "api was started again"),
        ("bad", "gateway-2 does not answer"),
        ("warn", "gateway-1 is draining"),
        ("bad", "the query history is behind"),
        ("warn", "messages are dropped"),
    ]
    healthy = {"processes": [], "gateways": [], "dropped_per_second": 0}
    assert run(loaded, "/dashboard/core/alarms.js", "m.alarmsOf(x)", healthy) == []


def test_the_tree_of_topics_is_bounded(loaded: Dashboard) -> None:
    shown = """(() => {
      const tree = new m.TopicTree();
      for (let n = 0; n < 10_050; n += 1) tree.put(`t/${n}`, {last: n});
      tree.put('t/60', {last: 'again'});
      tree.put('new', {last: 1});
      return [tree.size, tree.topic('t/49'), tree.topic('t/51'), tree.topic('t/60').last,
              tree.rows().length];
    })()"""
    size, gone, oldest, again, rows = run(loaded, "/dashboard/core/tree.js", shown)
    assert (size, gone, again) == (10_000, None, "again")
    assert oldest is not None
    # Of the ten thousand only what is open is in the list.
    assert rows <= 10_001


def test_what_spark_answers_is_asked_again_while_it_starts(loaded: Dashboard) -> None:
    shown = """await (async () => {
      const real = globalThis.fetch;
      const answers = x.map(([status, body, headers]) => new Response(body, {status, headers}));
      let waits = 0;
      try {
        globalThis.fetch = async () => answers.shift();
        const answer = await new m.Api().askSpark("/sql", {}, undefined, () => { waits += 1; });
        return [waits, await answer.text()];
      } catch (problem) {
        return [waits, problem.status, problem.message];
      } finally {
        globalThis.fetch = real;
      }
    })()"""
    soon = [503, '{"detail": "Spark is starting"}', {"Retry-After": "1"}]
    away = [503, '{"detail": "no query application"}', {}]

    def asked(*answers: list[Any]) -> Any:
        return run(loaded, "/dashboard/core/api.js", shown, list(answers))

    assert asked(soon, [200, "rows", {}]) == [1, "rows"]
    assert asked(soon, away) == [1, 503, "no query application"]
