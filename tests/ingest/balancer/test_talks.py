from hypothesis import given
from hypothesis import strategies as st

from ingest.balancer.talks import Circle, Talks, choose, circles_of, key_of


def client(name: str, tenant: str = "t") -> tuple[str, str]:
    return (tenant, name)


A, B, C, D = (client(name) for name in "abcd")


def test_those_who_hear_the_same_topics_are_one_circle() -> None:
    topics = {("t", "x/1"): 1.0, ("t", "x/2"): 2.0, ("t", "y"): 4.0, ("t", "nobody"): 8.0}
    heard = [(A, "x/+"), (B, "x/#"), (B, "+/1"), (C, "y"), (D, "$share/g/y")]
    assert circles_of(topics, heard) == {(A, B): 3.0, (C,): 4.0}


def test_tenants_do_not_hear_each_other() -> None:
    topics = {("t", "x"): 1.0, ("u", "x"): 2.0}
    heard = [(A, "x"), (client("a", "u"), "x"), (client("b", "u"), "#")]
    assert circles_of(topics, heard) == {(A,): 1.0, (client("a", "u"), client("b", "u")): 2.0}


def hears(topic_filter: str, topic: str) -> bool:
    """Match one topic as the specification words it, level by level."""
    wanted, found = topic_filter.split("/"), topic.split("/")
    if wanted[-1] == "#":
        return hears("/".join([*wanted[:-1], *["+"] * (len(found) - len(wanted) + 1)]), topic)
    return len(wanted) == len(found) and all(
        one in ("+", other) for one, other in zip(wanted, found, strict=True)
    )


levels = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=3).map("/".join)
filters = st.lists(st.sampled_from(["a", "b", "+"]), min_size=1, max_size=3).map("/".join)


@given(
    st.dictionaries(levels.map(lambda topic: ("t", topic)), st.integers(1, 9).map(float)),
    st.lists(st.tuples(st.sampled_from([A, B, C, D]), st.one_of(filters, st.just("a/#")))),
)
def test_circles_are_those_that_matching_says(
    topics: dict[tuple[str, str], float], heard: list[tuple[tuple[str, str], str]]
) -> None:
    wanted: dict[tuple[tuple[str, str], ...], float] = {}
    for (_, topic), rate in topics.items():
        circle = tuple(sorted({one for one, topic_filter in heard if hears(topic_filter, topic)}))
        if circle:
            wanted[circle] = wanted.get(circle, 0.0) + rate
    assert circles_of(topics, heard) == wanted


def test_whole_circles_are_chosen_those_with_much_to_save_first() -> None:
    circles = {(A, B): 10.0, (B, C): 4.0, (A, B, C, D): 16.0, (D,): 99.0}
    assert choose(circles, 4) == [A, B, C, D]
    assert choose(circles, 3) == [A, B, C]
    assert choose(circles, 2) == [A, B]
    assert choose(circles, 1) == []


def test_a_client_has_the_same_name_as_in_the_proxies() -> None:
    # printf default/sensor-1 | sha1sum
    assert key_of("default", "sensor-1") == "5FC91793CEDE7218"
    assert len({key_of("t", one) for one in ("a b", "a\nb", "#", "ü", "a\x00")}) == 5


def test_the_order_keeps_circles_together() -> None:
    circles = (Circle(1.0, (0, 2)), Circle(1.0, (1, 3)), Circle(1.0, (2, 4)))
    talks = Talks(tuple("abcde"), (1.0,) * 5, (0,) * 5, circles)
    assert talks.order == (0, 2, 4, 1, 3)
    assert talks.rates == (1.0, 1.0, 2.0, 1.0, 1.0)
