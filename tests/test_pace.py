import pytest

from tests.pace import bound, first_pace, within


@pytest.mark.parametrize(
    ("pace", "load", "cores", "expected"),
    [
        (1.0, 0.0, 2, 10.0),
        (0.5, 0.0, 2, 10.0),
        (2.0, 0.0, 2, 20.0),
        (1.0, 8.0, 2, 20.0),
        (1.0, 8.0, 4, 15.0),
        (2.0, 8.0, 2, 40.0),
    ],
)
def test_a_bound_grows_with_pace_and_load(
    pace: float, load: float, cores: int, expected: float
) -> None:
    assert bound(10.0, pace, load, cores) == pytest.approx(expected)


def test_a_bound_is_never_shorter_than_on_the_reference_machine() -> None:
    assert within(10.0) >= 10.0


def test_the_machine_is_measured_once() -> None:
    assert first_pace() == first_pace() > 0.0


def test_the_load_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = []
    for load in (0.0, 10.0):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        bounds.append(within(1.0))
    assert bounds[0] < bounds[1]
