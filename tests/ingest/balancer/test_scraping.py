import pytest

from ingest.balancer.scraping import ScrapeError, read_metric, scrape
from tests.ingest.balancer.metrics_page import MetricsPage

pytestmark = pytest.mark.anyio

PAGE = """# HELP cpu of cpu
# TYPE cpu counter
cpu_total 1
process_cpu 2
cpu{mode="user",core="a b"} 1.5 1700000000
cpu{mode="}"} 2
other{cpu="x"} 7
empty NaN"""


@pytest.mark.parametrize(("name", "value"), [("cpu", 3.5), ("cpu_total", 1), ("absent", None)])
def test_samples_of_a_metric_are_added_up(name: str, value: float | None) -> None:
    assert read_metric(PAGE, name) == value


def test_nan_is_not_a_number() -> None:
    found = read_metric(PAGE, "empty")
    assert found is not None
    assert found != found


@pytest.mark.parametrize("page", ["cpu", "cpu ", "cpu x", "cpu{} "])
def test_a_sample_that_is_malformed_is_none(page: str) -> None:
    assert read_metric(page, "cpu") is None


async def test_a_page_is_read() -> None:
    async with MetricsPage().served() as page:
        page.text = "cpu 5\n"
        assert await scrape(page.url, 5) == "cpu 5\n"
        page.status = "500 Sorry"
        with pytest.raises(ScrapeError, match="500 Sorry"):
            await scrape(page.url, 5)
    with pytest.raises(ScrapeError):
        await scrape(page.url, 5)
    with pytest.raises(ScrapeError, match="expected http"):
        await scrape("https://127.0.0.1/", 5)
