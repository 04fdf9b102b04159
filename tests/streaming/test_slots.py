from typing import Any

import pytest

from streaming.engine.slots import router_mode, rules_mode, task_slots
from streaming.settings.router import RouterSettings


def some_settings(**fields: Any) -> RouterSettings:
    return RouterSettings(**fields)


@pytest.mark.parametrize(
    ("master", "slots"),
    [("local", 1), ("local[7]", 7), ("local[7,2]", 7), ("local-cluster[2, 3, 512]", 6)],
)
def test_a_local_master_says_how_many_tasks_run_at_once(master: str, slots: int) -> None:
    assert task_slots(master) == slots


def test_a_cluster_may_grow() -> None:
    assert task_slots("spark://host:7077") is None


@pytest.mark.parametrize(
    ("slots", "router", "rules"), [(4, False, False), (5, True, False), (9, True, False)]
)
def test_the_router_comes_before_rules(slots: int, router: bool, rules: bool) -> None:
    settings = some_settings(master=f"local[{slots}]")
    mode = router_mode(settings, 4)
    assert mode.real_time == router
    assert rules_mode(settings, mode, 4, 1).real_time == rules
    assert rules_mode(settings, mode, 4, 1).reason


def test_the_default_has_slots_for_both_and_more_partitions_than_the_default() -> None:
    for partitions in (4, 8, 15):
        mode = router_mode(some_settings(), partitions)
        assert rules_mode(some_settings(), mode, partitions, 1).real_time


def test_micro_batches_are_for_all() -> None:
    settings = some_settings(trigger="micro-batch")
    mode = router_mode(settings, 4)
    assert not rules_mode(settings, mode, 4, 1).real_time
