"""How what waits for partitions is told."""

from streaming.log.sinks import Waiting, parse_undelivered, undelivered_figures

ROUTER = Waiting("router", "mqlake.delivery.g", 0, 7, 700, 5_000)


def test_lines_are_read() -> None:
    assert parse_undelivered("") == []
    assert parse_undelivered("router mqlake.delivery.g 0 7 700 5000\n") == [ROUTER]


def test_of_several_queries_for_a_partition_all_is_added() -> None:
    rules = Waiting("rules", "mqlake.delivery.g", 0, 1, 20, 9_000)
    other = Waiting("rules", "mqlake.outputs", 3, 1, 20, 11_000)
    assert undelivered_figures([ROUTER, rules, other], 10_000) == {
        "mqlake.delivery.g-0": {"records": 8, "bytes": 720, "oldest_seconds": 5.0},
        "mqlake.outputs-3": {"records": 1, "bytes": 20, "oldest_seconds": 0.0},
    }
