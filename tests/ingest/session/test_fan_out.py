"""What messages cost, by publisher, beside a second count that remembers each delivery."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.session.limits import fan_out
from ingest.session.limits.fan_out import THE_REST, FanOut, HeardFanOut, Publisher
from ingest.session.limits.rates import TokenBucket

GATEWAYS = ("g0", "g1", "g2")
TENANTS = ("acme", "beta")
NOTES = st.lists(
    st.tuples(
        st.sampled_from(GATEWAYS),
        st.sampled_from(TENANTS),
        st.sampled_from([f"c{number}/x" for number in range(8)]),
        st.integers(1, 50),
    )
    | st.none(),
    max_size=80,
)
"""Deliveries of one gateway; None: it says its word."""


@pytest.mark.parametrize(("told", "counted"), [(256, 10_000), (3, 10_000), (3, 5), (1, 1)])
@given(notes=NOTES)
def test_all_that_is_delivered_is_charged_once(
    told: int, counted: int, notes: list[tuple[str, str, str, int] | None]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fan_out, "MAX_TOLD", told)
        patch.setattr(fan_out, "MAX_COUNTED", counted)
        here = FanOut()
        others = {name: HeardFanOut(name) for name in GATEWAYS}
        charged: dict[str, Counter[Publisher]] = {name: Counter() for name in GATEWAYS}
        expected: dict[str, Counter[Publisher]] = {name: Counter() for name in GATEWAYS}
        for note in (*notes, None):
            if note is not None:
                gateway, tenant, client_id, deliveries = note
                here.note(*note)
                expected[gateway][tenant, client_id] += deliveries
                continue
            word = here.word()
            assert sum(map(len, word["of"].values())) <= len(GATEWAYS) * (told + len(TENANTS))
            for name, heard in others.items():
                charged[name].update(heard.take("here", "run", word))
                assert heard.take("here", "run", word) == {}, "a word counts once"
    for name in GATEWAYS:
        for tenant in TENANTS:
            assert total(charged[name], tenant) == total(expected[name], tenant)
        for publisher, deliveries in charged[name].items():
            if publisher[1] != THE_REST:
                assert deliveries <= expected[name][publisher]
        if told == 256:
            assert charged[name] == expected[name]


def total(counts: Counter[Publisher], tenant: str) -> int:
    return sum(count for (of, _), count in counts.items() if of == tenant)


def test_a_word_of_another_run_counts() -> None:
    word = {"number": 1, "of": {"me": {"acme/c": 3}}}
    heard = HeardFanOut("me")
    assert heard.take("other", "a", word) == {("acme", "c"): 3}
    assert heard.take("other", "b", word) == {("acme", "c"): 3}
    assert heard.take("third", "a", word) == {("acme", "c"): 3}
    assert heard.take("other", "b", {**word, "number": 0}) == {}, "it is older"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["me", "number", "of"]), inner),
)


@given(JSON | st.builds(lambda of: {"number": 1, "of": {"me": of}}, JSON))
def test_what_is_no_word_charges_nobody(word: Any) -> None:
    assert HeardFanOut("me").take("other", "a", word) == {}


@pytest.mark.parametrize("here", [0, 4])
@pytest.mark.parametrize("elsewhere", [0, 5, 50])
def test_a_client_that_publishes_as_fast_as_it_may_costs_no_more_than_it_may(
    here: int, elsewhere: int
) -> None:
    """Charged 1 and those here at once, those elsewhere by a word half a second later."""
    limit, seconds, step = 1000.0, 20.0, 0.005
    bucket, late, heard = TokenBucket(limit, limit), FanOut(), HeardFanOut("me")
    on_the_way: list[tuple[float, Any]] = []
    free_at, cost, spoke_at, now = 0.0, 0, 0.0, 0.0
    while now < seconds:
        while on_the_way and on_the_way[0][0] <= now:
            counts = heard.take("other", "run", on_the_way.pop(0)[1])
            free_at = max(free_at, now + bucket.take(sum(counts.values()), now))
        while free_at <= now:
            free_at = max(free_at, now + bucket.take(1 + here, now))
            cost += 1 + here + elsewhere
            if elsewhere:
                late.note("me", "acme", "c", elsewhere)
        if now - spoke_at >= 0.5:
            spoke_at = now
            on_the_way.append((now + 0.5, late.word()))
        now += step
    at_once = limit * (1 + elsewhere / (1 + here))  # a second's worth, and what comes of it
    before_it_is_told = limit * 1.1 * elsewhere / (1 + here)
    assert cost <= 1.1 * limit * seconds + at_once + before_it_is_told
    assert cost >= 0.9 * limit * seconds
