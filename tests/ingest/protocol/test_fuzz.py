"""Invariant: the decoder gives packets, asks for data or raises RemoteProtocolError.

Whatever arrives, it never raises anything else, and the way the bytes are cut never changes what
comes out. What it accepts, the encoder can say again; what it refuses, it refuses by a clause.
"""

from __future__ import annotations

import random
import re
from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import encode
from ingest.protocol.errors import RemoteProtocolError
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import Connect
from tests.ingest.wire import WireRow, mutate, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.protocol.packets import Packet

SEED = 20_260_101
MUTATIONS_PER_ROW = 25

ROWS = read_rows()
CLAUSE = re.compile(r"MQTT(5|311|31)-(A|\d+(\.\d+)+(-\d+)?)")
REASON_CODES = range(0x80, 0xA3)


def run(decoder: Decoder, chunks: Iterable[bytes]) -> list[Packet | str]:
    """Feed the chunks and tell the outcome: the packets, then the clause of an error, if any."""
    outcome: list[Packet | str] = []
    refusal: RemoteProtocolError | None = None
    try:
        for chunk in chunks:
            decoder.receive_data(chunk)
            while (packet := decoder.next_packet()) is not NEED_DATA:
                outcome.append(packet)
    except RemoteProtocolError as error:
        refusal = error
    if refusal is not None:
        assert CLAUSE.fullmatch(refusal.clause), refusal
        assert refusal.reason_code in REASON_CODES
        assert decoder.buffered_bytes == 0
        outcome.append(refusal.clause)
    return outcome


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Cut at the given places, wherever they are."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def test_mutated_rows_raise_nothing_but_remote_protocol_errors() -> None:
    source = random.Random(SEED)
    for row in ROWS:
        for _ in range(MUTATIONS_PER_ROW):
            data = mutate(row.data, source.choice(ROWS).data, source)
            whole = run(row.decoder(), [data])
            places = [source.randrange(1 + len(data)) for _ in range(3)]
            assert run(row.decoder(), cut(data, places)) == whole, (row.name, data.hex(" "))
            assert run(row.decoder(), byte_by_byte(data)) == whole, (row.name, data.hex(" "))


def test_mutated_rows_that_still_decode_can_be_encoded_again() -> None:
    source = random.Random(SEED + 1)
    for row in ROWS:
        for _ in range(5):
            decoder = row.decoder()
            for packet in run(decoder, [mutate(row.data, b"", source)]):
                if isinstance(packet, str):
                    continue
                level = decoder.protocol_level
                assert level is not None
                again = row.decoder()
                again.receive_data(encode(packet, level))
                assert again.next_packet() == packet


@given(
    row=st.sampled_from(ROWS),
    before=st.lists(st.sampled_from(ROWS), max_size=3),
    source=st.randoms(use_true_random=False),
    places=st.lists(st.integers(0, 300), max_size=8),
)
@settings(max_examples=500)
def test_a_mutated_row_in_a_stream_means_the_same_however_it_is_cut(
    row: WireRow, before: list[WireRow], source: random.Random, places: list[int]
) -> None:
    """Valid packets of the same version come before; a server has read a CONNECT."""
    level = row.protocol_level
    valid = [one for one in before if one.packet is not None and one.protocol_level == level]
    data = b"".join(one.data for one in valid if one.role is row.role)
    if row.role is Role.SERVER:
        data = encode(Connect("c", level), level) + data
    data += mutate(row.data, before[0].data if before else b"", source)

    def decoder() -> Decoder:
        return Decoder(level if row.role is Role.CLIENT else None, 1_000_000, role=row.role)

    whole = run(decoder(), [data])
    assert run(decoder(), cut(data, places)) == whole
    assert run(decoder(), byte_by_byte(data)) == whole


@given(
    data=st.binary(max_size=200),
    level=st.sampled_from([None, 3, 4, 5]),
    role=st.sampled_from(Role),
    places=st.lists(st.integers(0, 200), max_size=8),
)
@settings(max_examples=300)
def test_any_bytes_raise_nothing_but_remote_protocol_errors(
    data: bytes, level: int | None, role: Role, places: list[int]
) -> None:
    def decoder() -> Decoder:
        return Decoder(level or 5, role=role) if role is Role.CLIENT else Decoder(level)

    whole = run(decoder(), [data])
    assert run(decoder(), cut(data, places)) == whole
    assert run(decoder(), byte_by_byte(data)) == whole
