"""Prints packets per second of the codec: `python -m tests.ingest.protocol.bench_codec`.

Streams are fed in chunks of 64 KiB, as from a busy socket; each figure is the best of three runs.
"""

import sys
import time
from collections.abc import Callable

from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import encode, encode_puback, encode_pubrec
from ingest.protocol.packets import Publish
from ingest.protocol.properties import Properties
from ingest.protocol.publish_template import PublishTemplate

PACKETS = 50_000
CHUNK_BYTES = 65_536
TOPIC_NAMES = [f"plant/{number % 100}/sensor/temperature" for number in range(PACKETS)]
PROPERTIES: Properties = {"message_expiry_interval": 60, "user_property": [("unit", "C")]}


def report(name: str, run: Callable[[], None]) -> None:
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    sys.stdout.write(f"{name:48} {PACKETS / best:12,.0f}/s {best / PACKETS * 1e6:7.2f} µs\n")


def decode_all(level: int, packets: list[bytes]) -> Callable[[], None]:
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
        assert decoded == len(packets)

    return run


def publishes(
    level: int, *, qos: int, payload_bytes: int = 64, properties: Properties | None = None
) -> list[bytes]:
    payload = b"x" * payload_bytes
    return [
        encode(
            Publish(
                topic_name,
                payload,
                qos,
                packet_id=number + 1 if qos else 0,
                properties=properties or {},
            ),
            level,
        )
        for number, topic_name in enumerate(TOPIC_NAMES)
    ]


def main() -> None:
    identifiers = range(1, PACKETS + 1)
    report("decode PUBLISH 3.1.1, QoS 0, 64 bytes", decode_all(4, publishes(4, qos=0)))
    report("decode PUBLISH 5.0, QoS 0, 64 bytes", decode_all(5, publishes(5, qos=0)))
    report("decode PUBLISH 5.0, QoS 1, 64 bytes", decode_all(5, publishes(5, qos=1)))
    report(
        "decode PUBLISH 5.0, QoS 1, 1 KiB", decode_all(5, publishes(5, qos=1, payload_bytes=1024))
    )
    report(
        "decode PUBLISH 5.0, QoS 1, 64 bytes, 2 properties",
        decode_all(5, publishes(5, qos=1, properties=PROPERTIES)),
    )
    report("decode PUBACK", decode_all(5, [encode_puback(number) for number in identifiers]))
    report("decode PUBREC", decode_all(5, [encode_pubrec(number) for number in identifiers]))

    publish = Publish(TOPIC_NAMES[0], b"x" * 64, 1, packet_id=1)
    template = PublishTemplate(TOPIC_NAMES[0], b"x" * 64, protocol_level=5)

    def encode_each() -> None:
        for _ in identifiers:
            encode(publish, 5)

    def fan_out_qos_0() -> None:
        for _ in identifiers:
            template.to_bytes()

    def fan_out_qos_1() -> None:
        for number in identifiers:
            template.to_bytes(qos=1, packet_id=number)

    def fan_out_with_identifier() -> None:
        for number in identifiers:
            template.to_bytes(qos=1, packet_id=number, subscription_identifiers=(3,))

    def acknowledge() -> None:
        for number in identifiers:
            encode_puback(number)

    report("encode PUBLISH 5.0, QoS 1, 64 bytes", encode_each)
    report("template, QoS 0", fan_out_qos_0)
    report("template, QoS 1", fan_out_qos_1)
    report("template, QoS 1, subscription identifier", fan_out_with_identifier)
    report("encode_puback", acknowledge)


if __name__ == "__main__":
    main()
