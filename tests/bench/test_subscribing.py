from bench.parts.subscribing import measure_gateway_match
from bench.results.figures import GOALS


def test_a_match_is_measured_alone_and_while_others_subscribe() -> None:
    figures = {figure.name: value for figure, value in measure_gateway_match().items()}
    goals = [name for name in GOALS if name.startswith("gateway's tree")]
    assert goals
    assert set(goals) < set(figures)
    assert all(value > 0 for value in figures.values())
