"""What a site's subscribers want of the federation, and the few filters that say so."""

from random import Random
from typing import Any

import pytest

from ingest.federation.filters import covers, summarise
from ingest.federation.prefixes import Prefixes
from ingest.federation.sites.interest.subscriptions import SiteSubscriptions
from mqlake.records.messages import ROUTES, LogRecord, Route, route_key
from mqlake.topics.names import validate_topic_filter


def subscriptions(most: int = 4, always: tuple[str, ...] = ()) -> SiteSubscriptions:
    return SiteSubscriptions("default", Prefixes([]), ["#"], always, most)


def subscribe(found: SiteSubscriptions, *filters: str, gateway: str = "g") -> bool:
    return _tell(found, filters, gateway, b"{}")


def unsubscribe(found: SiteSubscriptions, *filters: str, gateway: str = "g") -> bool:
    return _tell(found, filters, gateway, None)


def _tell(
    found: SiteSubscriptions, filters: tuple[str, ...], gateway: str, value: bytes | None
) -> bool:
    keys = [route_key(Route(gateway, "default", one)) for one in filters]
    return found.take(ROUTES, [LogRecord(0, 0, 0, key, value, []) for key in keys])


def narrow(found: SiteSubscriptions) -> None:
    found.end_narrowing(found.begin_narrowing()())


def test_the_summary_grows_at_once_by_what_it_does_not_cover() -> None:
    one = subscriptions(always=("always",))
    assert one.summary() == {"always"}
    assert subscribe(one, "a/1", "a/2")
    assert one.summary() == {"always", "a/1", "a/2"}
    assert not subscribe(one, "a/1", gateway="another")
    assert subscribe(one, "a/3", "a/4")
    assert one.summary() == {"always", "a/+"}
    assert not subscribe(one, "a/5"), "it is covered"
    assert not one.has_less


def test_what_is_wanted_no_longer_is_left_out_of_the_next_summary_of_all() -> None:
    one = subscriptions()
    subscribe(one, *(f"a/{number}" for number in range(9)))
    assert one.summary() == {"a/+"}
    unsubscribe(one, *(f"a/{number}" for number in range(2, 9)))
    assert one.has_less
    assert one.summary() == {"a/+"}
    narrow(one)
    assert one.summary() == {"a/0", "a/1"}
    assert not one.has_less


def test_what_comes_and_goes_while_the_summary_is_made_is_not_lost() -> None:
    one = subscriptions()
    subscribe(one, *(f"a/{number}" for number in range(9)))
    unsubscribe(one, *(f"a/{number}" for number in range(2, 9)))
    narrowing = one.begin_narrowing()
    assert subscribe(one, "a/8", "b"), "the old summary covers the first, not so the new one"
    unsubscribe(one, "a/0")
    assert one.summary() == {"a/+", "b"}
    one.end_narrowing(narrowing())
    assert one.summary() == {"a/0", "a/1", "a/8", "b"}
    assert one.has_less
    narrow(one)
    assert one.summary() == {"a/1", "a/8", "b"}


@pytest.mark.parametrize("seed", range(20))
def test_all_that_is_wanted_is_always_covered(seed: int) -> None:
    random = Random(seed)
    most, wanted = random.randint(1, 6), dict[tuple[str, str], bool]()
    one = subscriptions(most)
    narrowing: Any = None
    for _ in range(300):
        topic_filter = "/".join(random.choices("abc+", k=random.randint(1, 3)))
        way = (topic_filter, random.choice("gh"))
        wanted[way] = random.random() < 0.6
        (subscribe if wanted[way] else unsubscribe)(one, topic_filter, gateway=way[1])
        if narrowing is None and random.random() < 0.1:
            narrowing = one.begin_narrowing()
        elif narrowing is not None and random.random() < 0.2:
            one.end_narrowing(narrowing())
            narrowing = None
        summary = one.summary()
        assert len(summary) <= most
        for (topic_filter, _), is_wanted in wanted.items():
            assert not is_wanted or any(covers(wide, topic_filter) for wide in summary)
    if narrowing is not None:
        one.end_narrowing(narrowing())
    narrow(one)
    left = {topic_filter for (topic_filter, _), is_wanted in wanted.items() if is_wanted}
    assert one.summary() == summarise(left, most)


@pytest.mark.parametrize(
    "refused",
    [
        # Of a session of an older release: records have a line for each group.
        "$share/g/a\n$share/v/secret/#",
        "$share/g\x01/a",
        # Too long under the name of the federation.
        "a" * 65_534,
        "$share/g/" + "a" * 65_525,
    ],
)
def test_other_sites_hear_no_filter_that_they_would_refuse(refused: str) -> None:
    one = SiteSubscriptions("default", Prefixes([("", "far/")]), ["#"], (), 4)
    subscribe(one, "b", "$share/g/b", refused)
    told = {*one.summary(), *one.groups()}
    assert {"far/b", "$share/g/far/b"} <= told
    for topic_filter in told:
        validate_topic_filter(topic_filter)
    unsubscribe(one, "b", "$share/g/b", refused)
    narrow(one)
    assert not {*one.summary(), *one.groups()}
