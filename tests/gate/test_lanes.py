from tests.gate.classes import (
    ROOT,
    Class,
    Lane,
    class_of,
    files_of_tests,
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


def test_what_starts_no_system_nor_shares_a_broker_has_no_lane() -> None:
    lanes = Lanes([])
    assert lanes.of(ROOT / "tests/ingest/balancer/test_shares.py") is None
    assert lanes.of(ROOT / "tests/ingest/protocol/test_decoder.py") is None
