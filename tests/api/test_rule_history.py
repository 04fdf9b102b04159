import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.rules.history import COLUMNS, at_positions, matches, read_position, text, to_regex
from mqlake.errors import InvalidTopic
from mqlake.topics.matching import filter_matches
from mqlake.topics.names import validate_topic_filter
from rules.columns import ROW

LEVEL = st.text("a.$ (\\^-~&[\n", max_size=3)
TOPICS = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.lists(st.sampled_from(["+", "#", "a", "$a", ""]) | LEVEL, min_size=1, max_size=4)


@given(FILTERS.map("/".join), TOPICS)
def test_the_expression_of_a_filter_matches_what_the_filter_does(
    topic_filter: str, topic: str
) -> None:
    try:
        validate_topic_filter(topic_filter)
    except InvalidTopic:
        return
    pattern = to_regex(topic_filter).replace(r"\z", r"\Z")  # Java's name for the very end
    assert bool(re.search(pattern, topic)) == filter_matches(topic_filter, topic)


def test_history_has_every_column_of_a_rules_row() -> None:
    assert tuple(COLUMNS) == tuple(column.name for column in ROW)


def test_whatever_a_user_writes_is_a_literal_of_bytes() -> None:
    hostile = "a') OR 1=1 --\\'/#"
    assert text(hostile) == f"CAST(X'{hostile.encode().hex()}' AS STRING)"
    assert "OR 1" not in matches((hostile,))


@pytest.mark.parametrize(("partition", "offset"), [(0, 0), (7, 2**40), (1000, 1)])
def test_a_position_is_one_number(partition: int, offset: int) -> None:
    assert read_position(partition * 2**48 + offset) == (partition, offset)


def test_no_positions_match_nothing() -> None:
    assert at_positions([]) == "false"
