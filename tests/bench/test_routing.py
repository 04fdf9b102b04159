import pytest

from bench.parts.routing import FILTERS, measure_route_match
from bench.results.figures import GOALS

pytestmark = [pytest.mark.campaign("it measures"), pytest.mark.spark]


def test_the_route_function_is_measured() -> None:
    figures = {
        figure.name: value for figure, value in measure_route_match((20_000,), 2_000).items()
    }
    assert len(figures) == 8
    assert all(value > 0 for value in figures.values())
    of_routes = [name for name in GOALS if name.startswith("route function")]
    assert of_routes
    for name in of_routes:
        sizes = [size for size in FILTERS if f"{size:,} filters" in name]
        (size,) = sizes
        assert name.replace(f"{size:,}", "20,000") in figures
