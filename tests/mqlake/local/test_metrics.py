from dataclasses import replace
from pathlib import Path

from mqlake.local.metrics import SupervisorMetrics, metrics_url
from mqlake.metrics.families import Families
from mqlake.metrics.names import SUPERVISOR
from tests.mqlake.test_status import make_state


def test_every_process_tells_all_that_is_in_the_table(tmp_path: Path) -> None:
    state = make_state()
    shown = SupervisorMetrics(lambda: state, tmp_path)
    families = Families()
    shown.read(families)
    found = list(families)
    assert {one.name for one in found} == {one.name.removesuffix("_total") for one in SUPERVISOR}
    up = next(one for one in found if one.name == "mqlake_process_up")
    assert {one.labels["process"]: one.value for one in up.samples} == {"log": 1, "api": 0}


def test_a_system_is_healthy_when_all_of_it_is(tmp_path: Path) -> None:
    state = make_state()
    assert SupervisorMetrics(lambda: state, tmp_path).is_healthy()
    state = replace(state, phase="stopping")
    assert not SupervisorMetrics(lambda: state, tmp_path).is_healthy()


def test_what_listens_everywhere_is_reached_here() -> None:
    assert metrics_url("0.0.0.0", 9_100) == "http://127.0.0.1:9100/metrics"
