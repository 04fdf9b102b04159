"""Open messages as ranges: the same as a set of positions, whatever is done to it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingest.session.groups.open_work import OpenWork, decode_work
from mqlake.errors import InvalidRecord

positions = st.tuples(st.integers(0, 2), st.integers(0, 30))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), positions),
        st.tuples(st.just("discard"), positions),
        st.tuples(st.just("take"), st.tuples(st.integers(1, 8), st.just(0))),
    ),
    max_size=60,
)


# Shares by partition that were rounded left one behind.
@example([*(("add", one) for one in [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]), ("take", (5, 0))])
@given(steps)
def test_it_is_a_set_of_positions(steps: list[tuple[str, tuple[int, int]]]) -> None:
    work, model = OpenWork(), set[tuple[int, int]]()
    for step, position in steps:
        if step == "add":
            work.add(*position)
            model.add(position)
        elif step == "discard":
            work.discard(*position)
            model.discard(position)
        else:
            taken = set(work.take_first(position[0]))
            assert len(taken) == min(position[0], len(model))
            assert taken <= model
            model -= taken
            # The lowest of each partition: what stays is above what was taken.
            for partition, offset in taken:
                assert all(one > offset for p, one in model if p == partition)
        assert list(work) == sorted(model)
        assert len(work) == len(model)
        assert decode_work(work.encode()) == work
        assert all((one in work) == (one in model) for one in [position, (0, 0), (2, 30)])


@given(st.sets(positions), st.sets(positions))
def test_update_is_a_union(first: set[tuple[int, int]], second: set[tuple[int, int]]) -> None:
    work = OpenWork(first)
    copy = work.copy()
    copy.update(OpenWork(second))
    assert set(copy) == first | second
    assert set(work) == first


def test_a_dense_backlog_is_one_range() -> None:
    work = OpenWork()
    for offset in range(1_000_000, 1_010_000):
        work.add(3, offset)
    assert work.encode() == {"3": "wIQ9kE4="}


def test_a_sparse_backlog_takes_three_bytes_a_message() -> None:
    work = OpenWork((0, offset) for offset in range(0, 1_000_000, 100))
    assert len(work) == 10_000
    assert len(work.encode()["0"]) < 30_000


@pytest.mark.parametrize(
    "found",
    [{"0": "AQ=="}, {"0": "AQA="}, {"0": "AQG"}, {"0": "AYE="}, {"x": "AQE="}, {"0": 1}, [1]],
)
def test_malformed_ranges_are_refused(found: object) -> None:
    with pytest.raises(InvalidRecord):
        decode_work(found)  # type: ignore[arg-type]
