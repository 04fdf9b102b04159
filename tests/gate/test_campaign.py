from pathlib import Path

from tests.gate.campaign import NEW_COST, costs_now, marked_tests

MARKED = """
import pytest

mark = pytest.mark.campaign

def test_of_the_core(): pass

@pytest.mark.campaign("it has its turn")
@pytest.mark.parametrize("number", [1, 2])
async def test_in_turn(number): pass

@pytest.mark.parametrize("size", [1, pytest.param(9, marks=pytest.mark.campaign("it is large"))])
def test_with_a_large_case(size): pass

@pytest.mark.campaign("no test")
def helper(): pass

class TestSome:
    @pytest.mark.campaign("it has its turn")
    def test_in_turn(self): pass

    def test_of_the_core(self): pass

class TestAll:
    pytestmark = pytest.mark.campaign("it has its turn")

    def test_it(self): pass
"""


def test_marks_are_found_wherever_they_can_be(tmp_path: Path) -> None:
    file = tmp_path / "test_a.py"
    file.write_text(MARKED, encoding="utf-8")
    some = ["TestAll::test_it", "TestSome::test_in_turn", "test_in_turn", "test_with_a_large_case"]
    assert marked_tests(file) == some
    of_all = 'pytestmark = [pytest.mark.spark, pytest.mark.campaign("it has its turn")]\n'
    file.write_text(MARKED.replace("mark = pytest.mark.campaign\n", of_all), encoding="utf-8")
    assert marked_tests(file) == sorted([*some, "TestSome::test_of_the_core", "test_of_the_core"])


def test_what_is_new_in_the_campaign_takes_its_turn_before_it_has_a_cost() -> None:
    gone = "tests/integration/test_poison.py::test_that_is_gone"
    costs = costs_now({"tests/integration/test_poison.py": 3.0, gone: 20.0})
    poison = {name: cost for name, cost in costs.items() if "test_poison.py" in name}
    assert poison.pop("tests/integration/test_poison.py") == 3.0
    assert len(poison) == 2
    assert set(poison.values()) == {NEW_COST}
