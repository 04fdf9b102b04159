from ingest.balancer.simulation import Size, simulate


def test_few_clients_move_and_no_node_is_above_its_bound() -> None:
    """A sample; `bin/mqlake balancer simulate` has 100 nodes and a million clients."""
    report = simulate(Size(20, 20_000, 80, 16), slack=0.25, seed=1)
    start, joins, leaves, hot, halves = report["steps"]
    for step in report["steps"]:
        assert step["most_of_bound_percent"] <= 100.1, step
    assert start["moved_percent"] == 0
    assert start["home_percent"] > 90
    assert joins["moved_percent"] < 8
    assert leaves["moved_percent"] <= 8
    assert hot["moved_percent"] < 5
    assert halves["moved_percent"] < 15
