from mqlake.metrics.families import Families
from mqlake.metrics.names import RULES
from rules.metrics import RuleMetrics
from rules.prometheus import add_actions


def test_every_action_tells_all_that_is_in_the_table() -> None:
    metrics = RuleMetrics("rules", "1")
    counters = metrics.counters("default", "hot", 0, "http")
    counters.succeed(15)
    counters.succeed(700)
    counters.retried, counters.queued, counters.behind = 4, 5, 6
    metrics.counters("default", "hot", 1, "console").failed = 3
    families = Families()
    add_actions(families, metrics)
    found = list(families)
    assert {family.name for family in found} == {
        metric.name.removesuffix("_total") for metric in RULES
    }
    samples = [one for family in found for one in family.samples]
    of_http = {one.name: one.value for one in samples if one.labels["function"] == "http"}
    assert of_http["mqlake_action_outputs_done_total"] == 2
    assert of_http["mqlake_action_retries_total"] == 4
    assert of_http["mqlake_action_queued_outputs"] == 5
    assert of_http["mqlake_action_latency_seconds_sum"] == 0.715
    buckets = {one.labels["le"]: one.value for one in samples if one.name.endswith("_bucket")}
    assert buckets["0.02"] == 0, "the second action's stand last"
    labels = {"tenant": "default", "rule": "hot", "action": "1", "function": "console"}
    failed = next(one for one in samples if one.name.endswith("failed_total") and one.value)
    assert (failed.labels, failed.value) == (labels, 3)
