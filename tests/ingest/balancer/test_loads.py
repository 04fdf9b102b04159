import pytest

from ingest.balancer.loads import DELIVERY, Expected, LoadsError, read_expected, without
from ingest.balancer.placement import bucket_of
from ingest.balancer.talks import Circle, key_of


def read(lines: list[str], buckets: int, talkers: int = 10) -> Expected:
    return read_expected(lambda: lines, buckets, talkers)


def test_half_of_the_load_is_spread_and_half_is_the_clients() -> None:
    loads = read(["tenant,client_id,rate", "t,a,30", 't,"b,c",10'], 64).loads
    assert sum(loads) == pytest.approx(64)
    assert loads[bucket_of("t", "a", 64)] == pytest.approx(0.5 + 0.5 * 64 * 0.75)
    assert loads[bucket_of("t", "b,c", 64)] == pytest.approx(0.5 + 0.5 * 64 * 0.25)
    assert min(loads) == 0.5


def test_with_topics_or_without_it_is_the_same() -> None:
    short = read(["tenant,client_id,rate", "t,a,30", "t,b,10"], 64)
    assert read(["tenant,client_id,rate,topic", "t,a,30,", "t,b,10,"], 64) == short


@pytest.mark.parametrize("lines", [[], ["tenant,client_id,rate"], ["t,a,0"], ["t,,5"]])
def test_without_rates_all_buckets_are_the_same(lines: list[str]) -> None:
    assert read(lines, 4) == Expected((1.0,) * 4)


HEARD = ["t,a,30,", "t,b,,x/#", "t,c,,x/+", "t,d,,y", "t,,20,x/1", "t,,10,y", "t,c,5,"]


def test_who_hears_much_has_much_to_be_done() -> None:
    loads = read(HEARD, 64).loads
    total = 30 + 5 + DELIVERY * (2 * 20 + 10)
    for client_id, load in (("a", 30), ("b", 10), ("c", 15), ("d", 5)):
        bucket = bucket_of("t", client_id, 64)
        assert loads[bucket] == pytest.approx(0.5 + 0.5 * 64 * load / total)


def test_the_order_of_lines_is_all_the_same() -> None:
    assert read(HEARD[::-1], 64).loads == pytest.approx(read(HEARD, 64).loads)
    assert read(HEARD[::-1], 64).talks.circles == read(HEARD, 64).talks.circles


def test_those_who_hear_the_same_may_have_places_of_their_own() -> None:
    talks = read(HEARD, 64).talks
    assert talks.keys == (key_of("t", "b"), key_of("t", "c"))
    assert talks.circles == (Circle(20.0, (0, 1)),)
    assert talks.buckets == (bucket_of("t", "b", 64), bucket_of("t", "c", 64))
    assert read(HEARD, 64, talkers=1).talks.keys == ()


def test_who_has_a_place_of_its_own_is_no_load_of_its_bucket() -> None:
    expected = read(HEARD, 64)
    loads = without(expected, expected.talks.keys)
    total = 30 + 5 + DELIVERY * (2 * 20 + 10)
    # Four clients are known; a fourth part of what is spread goes with each, as far as there is.
    assert expected.talks.loads == pytest.approx(
        [(0.125 + 0.5 * one / total) * 64 for one in (10, 15)]
    )
    assert loads[bucket_of("t", "b", 64)] == loads[bucket_of("t", "c", 64)] == 0
    assert loads[bucket_of("t", "a", 64)] == expected.loads[bucket_of("t", "a", 64)]
    assert without(expected, ()) == list(expected.loads)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("t,a", "expected tenant,client_id,rate,topic"),
        ("t,a,b", "expected tenant,client_id,rate,topic"),
        ("t,a,1,,2", "expected tenant,client_id,rate,topic"),
        ("t,a,-1", "not a number from 0"),
        ("t,a,nan", "not a number from 0"),
        ("t,a,1,x", "of a client or of a topic, not of both"),
        ("t,a,,", "needs a client and a topic filter"),
        ("t,,,x", "needs a client and a topic filter"),
    ],
)
def test_a_line_that_is_wrong_is_named(line: str, reason: str) -> None:
    with pytest.raises(LoadsError, match=f"line 2: .*{reason}"):
        read(["t,a,1", line], 4)


def test_what_the_api_escapes_is_read_as_it_was() -> None:
    lines = ["t,'+a,5,", "t,b,,'+/x", "t,'-c,,+/x", "t,,1,y/x", "t,'quoted',1,"]
    plain = [line.replace("'+", "+").replace("'-", "-") for line in lines]
    assert read(lines, 64) == read(plain, 64)
    assert read(lines, 64).talks.keys == (key_of("t", "-c"), key_of("t", "b"))
    assert read(lines, 64).loads[bucket_of("t", "'quoted'", 64)] > 0.5


def test_too_many_lines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.balancer.loads.MOST_LINES", 3)
    with pytest.raises(LoadsError, match="more than 3 lines have a topic"):
        read(HEARD, 4)
