"""Three real logs and federators in a row, the one in the middle killed."""

import pytest

from bench.sites import measure_sites, to_lines


@pytest.mark.campaign(
    "it measures; tests/ingest/federation/brokers/test_service.py holds what sites promise"
)
@pytest.mark.promise
@pytest.mark.kafka
@pytest.mark.timeout(700)
def test_a_site_that_is_killed_loses_nothing_and_repeats_nothing() -> None:
    result = measure_sites(messages=50, rate=100, outage=2_000)
    assert (result["outage"]["lost"], result["outage"]["twice"]) == (0, 0)
    assert set(result["hops"]) == {"site 1 to 2", "site 2 to 3"}
    paths = result["paths"]
    assert set(paths["bytes"]) == {1, 2, 3} - {paths["to"]}
    assert paths["times_one_path"] < 2
    assert "0 lost, 0 twice" in to_lines(result)[-2]
