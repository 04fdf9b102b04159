"""Invariant: the decoder gives packets, asks for data or raises RemoteProtocolError.

Whatever arrives, it never raises anything else, and the way the bytes are cut never changes what
comes out. What it accepts, the encoder can say again.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import encode
from ingest.protocol.errors import RemoteProtocolError
from ingest.protocol.fixed_header import Role

if TYPE_CHECKING:
    from ingest.protocol.packets import Packet
    from tests.ingest.protocol.conftest import WireRow

SEED = 20_260_101
MUTATIONS_PER_ROW = 25


def run(decoder: Decoder, data: bytes, chunk_bytes: int) -> list[Packet | str]:
    """Feed the data and tell the outcome: the packets, then the clause of an error, if any."""
    outcome: list[Packet | str] = []
    try:
        for start in range(0, len(data), chunk_bytes):
            decoder.receive_data(data[start : start + chunk_bytes])
            while (packet := decoder.next_packet()) is not NEED_DATA:
                outcome.append(packet)
    except RemoteProtocolError as error:
        outcome.append(error.clause)
    return outcome


def mutate(data: bytes, source: random.Random) -> bytes:
    """Flip, replace, insert, delete or double some bytes."""
    mutated = bytearray(data)
    for _ in range(source.randint(1, 3)):
        place = source.randrange(len(mutated)) if mutated else 0
        action = source.randrange(5)
        if action == 0 and mutated:
            mutated[place] ^= 1 << source.randrange(8)
        elif action == 1 and mutated:
            mutated[place] = source.choice((0x00, 0x01, 0x7F, 0x80, 0xFF, source.randrange(256)))
        elif action == 2:
            mutated.insert(place, source.randrange(256))
        elif action == 3 and mutated:
            del mutated[place]
        else:
            mutated += data[: source.randrange(len(data) + 1)]
    return bytes(mutated)


def test_mutated_rows_raise_nothing_but_remote_protocol_errors(wire_rows: list[WireRow]) -> None:
    source = random.Random(SEED)
    for row in wire_rows:
        for _ in range(MUTATIONS_PER_ROW):
            data = mutate(row.data, source)
            whole = run(row.decoder(), data, len(data) + 1)
            assert run(row.decoder(), data, 1) == whole, (row.name, data.hex(" "))


def test_mutated_rows_that_still_decode_can_be_encoded_again(wire_rows: list[WireRow]) -> None:
    source = random.Random(SEED + 1)
    for row in wire_rows:
        for _ in range(5):
            decoder = row.decoder()
            for packet in run(decoder, mutate(row.data, source), 1_000_000):
                if isinstance(packet, str):
                    continue
                level = decoder.protocol_level
                assert level is not None
                again = row.decoder()
                again.receive_data(encode(packet, level))
                assert again.next_packet() == packet


@given(
    data=st.binary(max_size=200),
    level=st.sampled_from([None, 3, 4, 5]),
    role=st.sampled_from(Role),
    chunk_bytes=st.integers(1, 200),
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_raise_nothing_but_remote_protocol_errors(
    data: bytes, level: int | None, role: Role, chunk_bytes: int
) -> None:
    def decoder() -> Decoder:
        return Decoder(level or 5, role=role) if role is Role.CLIENT else Decoder(level)

    assert run(decoder(), data, chunk_bytes) == run(decoder(), data, 1000)
