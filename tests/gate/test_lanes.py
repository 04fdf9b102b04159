from tests.gate.classes import (
    ROOT,
    Class,
    Lane,
    class_of,
    files_of_tests,
    is_in_first_stage,
    lane_of,
    shares_the_system,
)
from tests.gate.lanes import Lanes


def test_all_that_uses_the_shared_system_is_in_one_lane() -> None:
    lanes = Lanes([])
    shared = [file for file in files_of_tests() if shares_the_system(file)]
    assert len(shared) > 10
    assert {lanes.of(file) for file in shared} == {Lane.SYSTEMS}


def test_systems_of_their_own_are_in_the_lanes_that_have_systems() -> None:
    lanes = Lanes([])
    own = [
        file for file in files_of_tests() if class_of(file) is Class.SYSTEM and not lane_of(file)
    ]
    assert {lanes.of(file) for file in own} <= {Lane.SYSTEMS, Lane.ENGINES}


def test_a_folder_with_a_spark_of_its_own_is_not_beside_another_spark() -> None:
    """A process has one Java: the folder that comes second would end that of the first."""
    lanes = {file: lane_of(file) for file in files_of_tests() if "rules" in file.parts}
    assert {lane for file, lane in lanes.items() if file.parent.name == "language"} == {
        None,
        Lane.SYSTEMS,
    }


def test_what_starts_no_system_nor_shares_a_broker_has_no_lane() -> None:
    lanes = Lanes([])
    assert lanes.of(ROOT / "tests/ingest/balancer/test_shares.py") is None
    assert lanes.of(ROOT / "tests/ingest/protocol/test_decoder.py") is None


def test_servers_within_a_test_run_in_the_second_stage() -> None:
    assert is_in_first_stage(ROOT / "tests/ingest/session/test_simulation.py")
    for folder in ("federation/sites/test_service.py", "gateway/test_survival.py"):
        file = ROOT / "tests/ingest" / folder
        assert class_of(file) is Class.PURE
        assert not is_in_first_stage(file)
