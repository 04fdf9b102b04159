"""Questions and answers about retained messages come back as they went in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import InvalidRecord
from mqlake.records.retained import (
    RetainedAnswer,
    RetainedMessage,
    RetainedQuestion,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
    partitions_of,
    position_of,
    rank_of,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBER = st.integers(0, 2**62)

PLACES = st.tuples(st.integers(0, 20), st.integers(0, 2**40))

MESSAGES = st.builds(
    RetainedMessage,
    topic_name=TEXT,
    qos=st.integers(0, 2),
    rank=NUMBER,
    received_at_ms=NUMBER,
    properties=st.none() | st.binary(min_size=1, max_size=20),
    payload=st.binary(max_size=20),
)


@given(
    st.builds(
        RetainedQuestion,
        TEXT,
        TEXT,
        NUMBER,
        TEXT,
        NUMBER,
        TEXT,
        position=st.none() | TEXT,
        max_messages=NUMBER,
        max_bytes=NUMBER,
        through=st.integers(1, 64),
    )
)
def test_a_question_comes_back(question: RetainedQuestion) -> None:
    assert decode_question(encode_question(question)) == question


@given(
    st.builds(
        RetainedAnswer,
        TEXT,
        TEXT,
        NUMBER,
        st.booleans(),
        messages=st.lists(MESSAGES, max_size=4),
        position=st.none() | TEXT,
    ),
    st.data(),
)
def test_an_answer_comes_back_and_is_refused_when_cut(
    answer: RetainedAnswer, data: st.DataObject
) -> None:
    encoded = encode_answer(answer)
    assert decode_answer(encoded) == answer
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(InvalidRecord):
        decode_answer(encoded[:cut])
    with pytest.raises(InvalidRecord):
        decode_answer(encoded + b"x")


def test_the_form_of_both() -> None:
    question = RetainedQuestion("g1", "ab", 7, "default", 2, "a/#", "a/b\0", 100, 65536)
    assert encode_question(question) == (
        b'{"v":3,"gateway":"g1","incarnation":"ab","number":7,"tenant":"default","shard":2,'
        b'"filter":"a/#","position":"a/b\\u0000","max_messages":100,"max_bytes":65536}'
    )
    messages = [
        RetainedMessage("a/b", 1, 9, 1_700_000_000_000, b"{}", b"12"),
        RetainedMessage("a/c", 0, 8, 1_700_000_000_000, None, b"3"),
    ]
    assert encode_answer(RetainedAnswer("g2", "ab", 7, False, messages, None)) == (
        b"\0\0\0\x9f"
        b'{"v":3,"gateway":"g2","incarnation":"ab","number":7,"absent":false,"position":null,'
        b'"messages":[["a/b",1,9,1700000000000,2,2],["a/c",0,8,1700000000000,null,1]]}'
        b"{}123"
    )


@given(st.integers(1, 64), st.integers(0, 1_000), st.integers(0, 2**47))
def test_a_rank_says_where_a_message_is(shards: int, partition: int, offset: int) -> None:
    rank = rank_of(partition, offset, shards)
    assert position_of(rank, partition % shards, shards) == (partition, offset)
    assert rank < 2**63, "an integer of the store"
    assert partition in partitions_of(partition % shards, shards, partition + 1)


@given(st.integers(1, 8), st.lists(PLACES, min_size=2, max_size=2, unique=True), st.integers(0, 7))
def test_the_later_message_of_a_topic_has_the_greater_rank(
    shards: int, places: list[tuple[int, int]], shard: int
) -> None:
    shard %= shards
    earlier, later = sorted((generation * shards + shard, at) for generation, at in places)
    assert rank_of(*earlier, shards) < rank_of(*later, shards)
