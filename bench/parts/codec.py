"""The codec alone: packets a second on one core, in this process.

Streams are fed in chunks of 64 KiB, as from a busy socket.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from bench.results.figures import Figures, figure
from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import encode, encode_puback
from ingest.protocol.packets import MQTT_3_1_1, MQTT_5_0, Packet, Publish
from ingest.protocol.properties import NO_PROPERTIES, Properties
from ingest.protocol.publish_template import PublishTemplate

PACKETS: Final = 50_000
CHUNK_BYTES: Final = 65_536
TOPIC_NAMES: Final = tuple(f"plant/{number % 100}/sensor/temperature" for number in range(PACKETS))
IDENTIFIERS: Final = range(1, PACKETS + 1)
PAYLOAD: Final = b"x" * 64
PROPERTIES: Final[Properties] = {"message_expiry_interval": 60, "user_property": [("unit", "C")]}

Work = Callable[[], object]


def measure_codec() -> Figures:
    """Packets decoded, and encoded, a second; PUBLISH with 64 bytes of payload."""
    return {figure(f"codec, {name}", "packets/s"): _rate(work) for name, work in _works().items()}


def _works() -> Mapping[str, Work]:
    plain = _publishes(qos=0)
    acknowledged = _publishes(qos=1)
    rich = _publishes(qos=1, properties=PROPERTIES)
    template = PublishTemplate(TOPIC_NAMES[0], PAYLOAD, protocol_level=MQTT_5_0)
    return {
        "decode PUBLISH 3.1.1, QoS 0": _decoding(plain, MQTT_3_1_1),
        "decode PUBLISH 5.0, QoS 1": _decoding(acknowledged, MQTT_5_0),
        "decode PUBLISH 5.0, QoS 1, 2 properties": _decoding(rich, MQTT_5_0),
        "decode PUBACK": _decoding_bytes([encode_puback(one) for one in IDENTIFIERS], MQTT_5_0),
        "encode PUBLISH 3.1.1, QoS 0": _encoding(plain, MQTT_3_1_1),
        "encode PUBLISH 5.0, QoS 1": _encoding(acknowledged, MQTT_5_0),
        "encode PUBLISH 5.0, QoS 1, 2 properties": _encoding(rich, MQTT_5_0),
        "decode and encode again PUBLISH 5.0, QoS 1": _passing_on(acknowledged, MQTT_5_0),
        "encode PUBACK": lambda: [encode_puback(packet_id) for packet_id in IDENTIFIERS],
        "encode one PUBLISH for many, QoS 0": lambda: [template.to_bytes() for _ in IDENTIFIERS],
        "encode one PUBLISH for many, QoS 1": lambda: [
            template.to_bytes(qos=1, packet_id=packet_id) for packet_id in IDENTIFIERS
        ],
    }


def _publishes(*, qos: int, properties: Properties = NO_PROPERTIES) -> list[Packet]:
    return [
        Publish(topic_name, PAYLOAD, qos, packet_id=packet_id if qos else 0, properties=properties)
        for packet_id, topic_name in zip(IDENTIFIERS, TOPIC_NAMES, strict=True)
    ]


def _decoding(packets: list[Packet], level: int) -> Work:
    return _decoding_bytes([encode(packet, level) for packet in packets], level)


def _decoding_bytes(packets: list[bytes], level: int) -> Work:
    stream = b"".join(packets)
    starts = range(0, len(stream), CHUNK_BYTES)
    chunks = [stream[start : start + CHUNK_BYTES] for start in starts]

    def run() -> None:
        decoder = Decoder(level)
        decoded = 0
        for chunk in chunks:
            decoder.receive_data(chunk)
            while decoder.next_packet() is not NEED_DATA:
                decoded += 1
        assert decoded == PACKETS

    return run


def _passing_on(packets: list[Packet], level: int) -> Work:
    stream = b"".join(encode(packet, level) for packet in packets)

    def run() -> None:
        decoder = Decoder(level)
        for start in range(0, len(stream), CHUNK_BYTES):
            decoder.receive_data(stream[start : start + CHUNK_BYTES])
            while (packet := decoder.next_packet()) is not NEED_DATA:
                encode(packet, level)

    return run


def _encoding(packets: list[Packet], level: int) -> Work:
    def run() -> None:
        for packet in packets:
            encode(packet, level)

    return run


def _rate(work: Work) -> float:
    begin = time.perf_counter()
    work()
    return PACKETS / (time.perf_counter() - begin)
