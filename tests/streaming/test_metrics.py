from pathlib import Path

from mqlake.clock import ManualClock
from mqlake.metrics.families import Families
from mqlake.metrics.names import ROUTER_AND_LAKE
from streaming.application.figures import Heap
from streaming.application.metrics import add_queries
from streaming.log.sinks import Waiting
from tests.streaming.test_figures import World, progress, watched


def test_every_query_tells_all_that_is_in_the_table(tmp_path: Path) -> None:
    world = World()
    run = watched("w", progress({}), tmp_path, more={"tenant": "acme", "rule": "hot"})
    ends = {"mqlake.inbound": {"0": 90, "1": 50}}
    world.watched = [watched("history", progress(ends), tmp_path), run]
    world.figures.latest = world.figures.read()
    world.figures.heap = Heap(5, 9)
    clock = ManualClock()
    world.figures.undelivered = [
        Waiting("router", "mqlake.delivery.g", 0, 7, 700, clock.now_ms() - 61_000)
    ]
    families = Families()
    add_queries(families, world.figures, clock)
    found = list(families)
    assert {family.name for family in found} == {
        metric.name.removesuffix("_total") for metric in ROUTER_AND_LAKE
    }
    samples = [one for family in found for one in family.samples]
    history = {one.name: one.value for one in samples if one.labels.get("query") == "history"}
    assert history["mqlake_query_lag_records"] == 10
    assert history["mqlake_query_batch_duration_seconds"] == 0.12
    waiting = {
        one.name: one.value for one in samples if one.labels.get("log_topic") == "mqlake.delivery.g"
    }
    assert waiting == {
        "mqlake_undelivered_records": 7,
        "mqlake_undelivered_bytes": 700,
        "mqlake_undelivered_oldest_seconds": 61,
    }
    of_rule = {one.name for one in samples if one.labels.get("rule") == "hot"}
    assert "mqlake_query_active" in of_rule
    assert "mqlake_query_lag_records" not in of_rule, "nobody knows"
