import itertools
import random

import pytest

from mqlake.rights.patterns import ClientIdPattern, TopicPattern
from mqlake.topics.matching import TopicFilterTrie, covers, filter_matches, overlaps

LEVELS = ("a", "b", "$s", "")
TOPICS = [
    "/".join(levels)
    for depth in (1, 2, 3, 4)
    for levels in itertools.product(LEVELS, repeat=depth)
    if "/".join(levels)
]


def filters() -> list[str]:
    found = []
    for depth in (1, 2, 3):
        for levels in itertools.product(("a", "b", "+", "$s"), repeat=depth):
            found += ["/".join(levels), "/".join((*levels[:-1], "#"))]
    return sorted(set(found))


FILTERS = filters()


def test_covers_and_overlaps_say_what_topics_say() -> None:
    matched = {
        one: frozenset(topic for topic in TOPICS if filter_matches(one, topic)) for one in FILTERS
    }
    for one, other in itertools.product(FILTERS, repeat=2):
        assert overlaps(one, other) == bool(matched[one] & matched[other]), (one, other)
        assert covers(one, other) == (matched[other] <= matched[one]), (one, other)


def test_the_tree_finds_the_filters_that_overlap() -> None:
    chosen = random.Random(7)
    for _ in range(20):
        some = chosen.sample(FILTERS, 25)
        tree: TopicFilterTrie[str] = TopicFilterTrie()
        for one in some:
            tree.insert(one, one)
        for other in FILTERS:
            found = tree.overlapping(other)
            assert sorted(found) == sorted(one for one in some if overlaps(one, other)), other


@pytest.mark.parametrize(
    ("pattern", "client_id", "username", "topic_filter"),
    [
        ("a/+/#", "c1", None, "a/+/#"),
        ("devices/%c/#", "c1", None, "devices/c1/#"),
        ("%u/%c", "c1", "ann", "ann/c1"),
        ("home/%u-%c/x", "c1", "ann", "home/ann-c1/x"),
        ("100%%/%c", "c1", None, "100%/c1"),
        ("100%%/x", "c1", None, "100%/x"),
        ("%%c", "c1", None, "%c"),
        ("devices/%c", "%u", "ann", "devices/%u"),  # what stands for it is only text
        ("devices/%c", "$share", None, "devices/$share"),
    ],
)
def test_placeholders_stand_for_who_asks(
    pattern: str, client_id: str, username: str | None, topic_filter: str
) -> None:
    assert TopicPattern(pattern).of(client_id, username) == topic_filter


@pytest.mark.parametrize(
    "name", ["+", "#", "a/b", "/", "a/", "+/+", "#/", "a+b", "..+", "a#", "a\0b", "\0", ""]
)
@pytest.mark.parametrize("pattern", ["devices/%c/#", "%c", "x-%c-y/+", "a/%c"])
def test_a_name_that_could_be_more_than_text_matches_nothing(pattern: str, name: str) -> None:
    assert TopicPattern(pattern).of(name, "ann") is None
    assert TopicPattern(pattern.replace("%c", "%u")).of("c1", name) is None


def test_a_name_is_no_tree_of_its_own() -> None:
    for pattern in ("%c", "%c/#", "%c-x/y"):
        assert TopicPattern(pattern).of("$SYS", None) is None
    assert TopicPattern("$%c").of("SYS", None) is None


def test_nobody_has_no_name() -> None:
    assert TopicPattern("home/%u/#").of("c1", None) is None


def test_whatever_a_pattern_matches_its_superset_does() -> None:
    for text in ("devices/%c/#", "%u/%c", "%c", "a/x-%c/+"):
        pattern = TopicPattern(text)
        for name in ("c1", "%", "c 1", "\u00e9"):
            mine = pattern.of(name, name)
            assert mine is not None
            assert covers(pattern.superset, mine)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a/#/b", "a+", "#a", "a/b#", "$share/g/a", "a\0", "a/" * 40_000),
        *("%", "%x", "%d/a", "a/%", "%C", "%c#", "%c+", "+%c", "a/#%u", "%c/%"),
    ],
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        TopicPattern(text)


@pytest.mark.parametrize(
    ("pattern", "client_id", "username", "is_one"),
    [
        ("*", "anything", None, True),
        ("*", "", None, True),
        ("c1", "c1", None, True),
        ("c1", "c12", None, False),
        ("c*", "c12", None, True),
        ("c*", "C12", None, False),
        ("%u", "ann", "ann", True),
        ("%u", "ann2", "ann", False),
        ("%u-*", "ann-2", "ann", True),
        ("%u-*", "bob-2", "ann", False),
        ("%u-*", "-2", None, False),
        ("%u-*", "-2", "", False),
        ("%u", "*", "*", True),
        ("%u", "anything", "*", False),  # a user named `*` is no wildcard
        ("%u-x", "ab-x", "a*", False),
        ("a*b*", "a*bc", None, True),
        ("a*b*", "axbc", None, False),
    ],
)
def test_client_identifiers(
    pattern: str, client_id: str, username: str | None, is_one: bool
) -> None:
    assert ClientIdPattern(pattern).matches(client_id, username) == is_one


@pytest.mark.parametrize("text", ["", "%c", "%c-*", "%"])
def test_what_is_no_client_identifier_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        ClientIdPattern(text)


SITE = {"site": "north", "certificate.organization": "Example"}


@pytest.mark.parametrize(
    ("pattern", "topic_filter"),
    [
        ("plants/%{site}/#", "plants/north/#"),
        ("%{site}/%c/+", "north/c1/+"),
        ("x-%{site}-%u/y", "x-north-ann/y"),
        ("o/%{certificate.organization}", "o/Example"),
        ("%%{site}", "%{site}"),
        ("plants/%{line}/#", None),  # it has none
        ("plants/%{SITE}/#", None),
    ],
)
def test_attributes_stand_for_what_is_known_of_who_asks(
    pattern: str, topic_filter: str | None
) -> None:
    assert TopicPattern(pattern).of("c1", "ann", SITE) == topic_filter
    if topic_filter is not None and not pattern.startswith("%%"):
        assert TopicPattern(pattern).of("c1", "ann") is None, "without attributes nothing is"


@pytest.mark.parametrize("value", ["+", "#", "a/b", "/", "a+b", "", "a\0b"])
@pytest.mark.parametrize("pattern", ["plants/%{site}/#", "%{site}", "x-%{site}-y/+"])
def test_an_attribute_that_could_be_more_than_text_matches_nothing(
    pattern: str, value: str
) -> None:
    assert TopicPattern(pattern).of("c1", "ann", {"site": value}) is None
    assert TopicPattern("%{site}/x").of("c1", "ann", {"site": "$SYS"}) is None


@pytest.mark.parametrize(
    "pattern", ["a/%{", "a/%{}", "a/%{site", "a/%{a b}/c", "a/%{a/b}", "a/%{é}", "%{site}+"]
)
def test_an_attribute_has_a_name(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"expected %c, %u, %\{name\} or %%|wildcard"):
        TopicPattern(pattern)


def test_attributes_are_in_client_identifiers() -> None:
    pattern = ClientIdPattern("%{site}-*")
    assert pattern.matches("north-7", "ann", SITE)
    assert not pattern.matches("south-7", "ann", SITE)
    assert not pattern.matches("-7", "ann"), "a name that is missing matches nothing"
