"""A key's partition is where Kafka's clients put it."""

import pytest

from mqlake.log.partitioning import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafka(key: bytes, expected: int) -> None:
    """Those of `UtilsTest.testMurmur2` in Kafka's Java client, where they are signed."""
    assert murmur2(key) == expected & 0xFFFF_FFFF
    assert partition_of(key, 7) == (expected & 0x7FFF_FFFF) % 7
