import pytest

from ingest.balancer.loads import LoadsError, read_loads
from ingest.balancer.placement import bucket_of


def test_half_of_the_load_is_spread_and_half_is_the_clients() -> None:
    loads = read_loads(["tenant,client_id,rate", "t,a,30", 't,"b,c",10'], 64)
    assert sum(loads) == pytest.approx(64)
    assert loads[bucket_of("t", "a", 64)] == pytest.approx(0.5 + 0.5 * 64 * 0.75)
    assert loads[bucket_of("t", "b,c", 64)] == pytest.approx(0.5 + 0.5 * 64 * 0.25)
    assert min(loads) == 0.5


@pytest.mark.parametrize("lines", [[], ["tenant,client_id,rate"], ["t,a,0"], ["t,,5"]])
def test_without_rates_all_buckets_are_the_same(lines: list[str]) -> None:
    assert read_loads(lines, 4) == [1.0] * 4


@pytest.mark.parametrize("line", ["t,a", "t,a,b", "t,a,-1", "t,a,nan", "t,a,1,2"])
def test_a_line_that_is_wrong_is_named(line: str) -> None:
    with pytest.raises(LoadsError, match="line 2"):
        read_loads(["t,a,1", line], 4)
