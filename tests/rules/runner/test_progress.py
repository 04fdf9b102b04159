"""Where the runner stands, without a log."""

import random
from itertools import count

import pytest

from mqlake.errors import InvalidRecord
from rules.runner.checkpoint import (
    Checkpoint,
    LaneKey,
    PublishedFrom,
    ReadPosition,
    decode_checkpoint,
    encode_checkpoint,
    mark_before,
)
from rules.runner.progress import MAX_SOURCES, PartitionProgress, RunnerProgress


def test_checkpoint_is_what_it_was() -> None:
    checkpoint = Checkpoint(
        positions={
            0: ReadPosition(7, {"i": (100, "r", 2), "bjob": (1, "r", 0)}),
            1: ReadPosition(0),
        },
        behind={
            LaneKey("default", "r", 3, 1): {
                0: ReadPosition(5, {"i": (90, "r", 0)}),
                1: ReadPosition(0),
            }
        },
        published_from={0: 12, 1: 0},
        is_clean=True,
    )
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"v":2}', b'{"v":1,"places":{}}', b"\xff"])
def test_other_records_are_no_checkpoint(data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_checkpoint(data)


def test_a_mark_before_an_output_lets_it_pass_and_what_is_before_it_not() -> None:
    mark = (10, "r", 0)
    assert mark_before(mark) < mark
    assert mark_before(mark) >= (10, "q", 99)
    assert mark_before(mark) >= (9, "z", 0)


def test_a_place_moves_over_batches_that_are_done_in_order() -> None:
    partition = PartitionProgress(ReadPosition(5))
    first, second = partition.begin(), partition.begin()
    first.left += 2
    first.close(ReadPosition(8, {"i": (1, "r", 0)}))
    second.close(ReadPosition(9, {"i": (2, "r", 0)}))
    assert partition.position == ReadPosition(5)
    first.release()
    assert partition.position == ReadPosition(5)
    first.release()
    assert partition.position == ReadPosition(9, {"i": (2, "r", 0)})


@pytest.mark.parametrize("seed", range(20))
def test_a_place_is_never_beyond_what_is_not_done(seed: int) -> None:
    chance = random.Random(seed)
    progress = RunnerProgress({0: ReadPosition(0)})
    partition = progress.partitions[0]
    undone: list[tuple[int, object]] = []
    offsets = count()
    for _ in range(300):
        if chance.random() < 0.5:
            batch = partition.begin()
            for _ in range(chance.randrange(4)):
                offset = next(offsets)
                if chance.random() < 0.8:
                    batch.left += 1
                    undone.append((offset, batch))
                partition.next_offset = offset + 1
            batch.close(partition.snapshot())
        elif undone:
            _, released = undone.pop(chance.randrange(len(undone)))
            released.release()  # type: ignore[attr-defined]
        position = progress.done()[0]
        assert position.offset <= min(
            (offset for offset, _ in undone), default=partition.next_offset
        )
        if not undone:
            assert progress.is_done


def test_what_was_published_is_looked_for_from_before_it_could_have_been() -> None:
    published = PublishedFrom()
    published.note({0: 100}, {0: 0, 1: 0})
    published.note({0: 150}, {0: 10, 1: 4})
    published.note({0: 200}, {0: 20, 1: 8})
    # Outputs from 10 of partition 0 and from 5 of partition 1 on are not done with.
    assert published.before({0: ReadPosition(10), 1: ReadPosition(5)}) == {0: 150}
    assert published.before({0: ReadPosition(19), 1: ReadPosition(9)}) == {0: 150}
    assert published.before({0: ReadPosition(20), 1: ReadPosition(8)}) == {0: 200}
    published.note({0: 300}, {0: 20, 1: 8})
    assert published.before({0: ReadPosition(20), 1: ReadPosition(8)}) == {0: 300}


def test_marks_of_jobs_that_are_over_go_and_those_of_the_streams_stay() -> None:
    partition = PartitionProgress(ReadPosition(0))
    partition.mark("i", (1, "r", 0))
    for job in range(2 * MAX_SOURCES):
        partition.mark(f"b{job}", (job, "r", 0))
    assert len(partition.marks) == MAX_SOURCES
    assert {"i", f"b{2 * MAX_SOURCES - 1}"} <= partition.marks.keys()
