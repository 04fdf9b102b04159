import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mqlake.topics.matching import TopicFilterTrie, filter_matches
from tests.memory import kept_bytes

# Few short levels, so that filters and names meet often; empty ones and `$` among them.
NAME_LEVELS = st.sampled_from(["", "a", "b", "$SYS", "$", "é"])
TOPIC_NAMES = st.lists(NAME_LEVELS, min_size=1, max_size=5).map("/".join).filter(bool)
TOPIC_FILTERS = st.one_of(
    st.lists(NAME_LEVELS | st.just("+"), min_size=1, max_size=5).map("/".join).filter(bool),
    st.lists(NAME_LEVELS | st.just("+"), max_size=4).map(lambda levels: "/".join([*levels, "#"])),
)
ITEMS = st.integers(0, 3)


@pytest.mark.parametrize(
    ("topic_filter", "topic_name", "matches"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/B", False),
        ("a/b", "a", False),
        ("a", "a/b", False),
        ("#", "a", True),
        ("#", "a/b/c", True),
        ("a/#", "a", True),
        ("a/#", "a/", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("a/+", "a/b/c", False),
        ("a/+/c", "a/b/c", True),
        ("a/+/#", "a", False),
        ("a/+/#", "a/b", True),
        ("+", "a", True),
        ("+", "/a", False),
        ("+/+", "/a", True),
        ("/+", "/a", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("+/#", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/+", "$SYS/x", True),
        ("a/+", "a/$x", True),
        ("a/#", "a/$x", True),
        ("#", "$", False),
    ],
)
def test_the_rule_and_the_trie_know_the_cases_of_the_specification(
    topic_filter: str, topic_name: str, matches: bool
) -> None:
    trie: TopicFilterTrie[str] = TopicFilterTrie()
    trie.insert(topic_filter, "x")
    assert filter_matches(topic_filter, topic_name) is matches
    assert trie.match(topic_name) == (["x"] if matches else [])


@given(st.lists(st.tuples(TOPIC_FILTERS, ITEMS), max_size=12), TOPIC_NAMES)
def test_the_trie_gives_each_item_once_for_each_of_its_filters_that_match(
    entries: list[tuple[str, int]], topic_name: str
) -> None:
    trie: TopicFilterTrie[int] = TopicFilterTrie()
    for topic_filter, item in entries:
        trie.insert(topic_filter, item)
    expected = [item for f, item in set(entries) if filter_matches(f, topic_name)]
    assert sorted(trie.match(topic_name)) == sorted(expected)


class TrieAgainstSet(RuleBasedStateMachine):
    """A trie that is filled and emptied does what a set of pairs does."""

    def __init__(self) -> None:
        super().__init__()
        self.trie: TopicFilterTrie[int] = TopicFilterTrie()
        self.entries: set[tuple[str, int]] = set()

    @rule(topic_filter=TOPIC_FILTERS, item=ITEMS)
    def insert(self, topic_filter: str, item: int) -> None:
        new = (topic_filter, item) not in self.entries
        assert self.trie.insert(topic_filter, item) is new
        self.entries.add((topic_filter, item))

    @rule(topic_filter=TOPIC_FILTERS, item=ITEMS)
    def remove(self, topic_filter: str, item: int) -> None:
        known = (topic_filter, item) in self.entries
        assert self.trie.remove(topic_filter, item) is known
        self.entries.discard((topic_filter, item))

    @rule(topic_name=TOPIC_NAMES)
    def match(self, topic_name: str) -> None:
        expected = [item for f, item in self.entries if filter_matches(f, topic_name)]
        assert sorted(self.trie.match(topic_name)) == sorted(expected)

    @invariant()
    def it_holds_these_filters(self) -> None:
        filters = {topic_filter for topic_filter, _ in self.entries}
        assert len(self.trie) == len(filters)
        assert sorted(self.trie.filters()) == sorted(filters)


TestTrieAgainstSet = TrieAgainstSet.TestCase


def test_nothing_is_left_of_what_was_removed() -> None:
    trie = TopicFilterTrie[int]()
    filters = [f"{a}/+/{b}/#" for a in range(100) for b in range(20)]

    def come_and_go() -> None:
        for topic_filter in filters:
            trie.insert(topic_filter, 1)
        for topic_filter in filters:
            trie.remove(topic_filter, 1)

    assert kept_bytes(come_and_go) < 10_000


def test_items_of_one_filter_come_in_the_order_of_their_insertion() -> None:
    trie: TopicFilterTrie[str] = TopicFilterTrie()
    for item in ("c", "a", "b"):
        trie.insert("t", item)
    assert trie.match("t") == ["c", "a", "b"]


def test_what_is_removed_leaves_the_filters_beside_it() -> None:
    trie: TopicFilterTrie[str] = TopicFilterTrie()
    for topic_filter in ("a/b/c", "a/b", "a/d"):
        trie.insert(topic_filter, "x")
    assert not trie.remove("a/x", "x")
    assert not trie.remove("a", "x")
    assert not trie.remove("a/b", "y")
    assert trie.remove("a/b/c", "x")
    assert sorted(trie.filters()) == ["a/b", "a/d"]
    assert trie.remove("a/b", "x")
    assert trie.remove("a/d", "x")
    assert len(trie) == 0
    assert trie.match("a/b") == []


def test_filter_stays_while_it_has_another_item() -> None:
    trie: TopicFilterTrie[str] = TopicFilterTrie()
    assert trie.insert("a", "x")
    assert not trie.insert("a", "x")
    assert trie.insert("a", "y")
    assert trie.remove("a", "x")
    assert trie.match("a") == ["y"]
