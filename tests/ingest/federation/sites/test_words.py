"""What federators say beside messages comes back as it was said, or is refused."""

import json

import pytest

from ingest.federation.sites.interest.interest import InterestEntry, News
from ingest.federation.sites.links.words import (
    Asked,
    Hello,
    InvalidWord,
    Passed,
    Reached,
    decode,
    encode_asked,
    encode_hello,
    encode_news,
    encode_passed,
    encode_reached,
)
from ingest.federation.sites.streams.passing import PassingQuestion
from ingest.federation.sites.streams.streams import StreamKey


def test_a_hello_comes_back() -> None:
    hello = Hello(7, ("f/#", "g/+"))
    assert decode(encode_hello(hello)) == hello


def test_a_hello_with_limits_comes_back() -> None:
    hello = Hello(7, (), limits={StreamKey(1, 17, 0): 500, StreamKey(2, 1, 3): 0})
    assert decode(encode_hello(hello)) == hello
    assert decode(encode_hello(Hello(7, (), limits={}))) == Hello(7, (), limits={})


def test_interest_comes_back_site_by_site() -> None:
    news: News = {
        3: InterestEntry(17, (2, 3), ("f/#", "g/+"), 1),
        4: None,
        5: InterestEntry(1, (5,), ()),
    }
    found: News = {}
    for payload in encode_news(news):
        word = decode(payload)
        assert isinstance(word, dict)
        found |= word
    assert found == news


def test_who_is_known_of_comes_back() -> None:
    reached = Reached({3: 17, 4: 1})
    assert decode(encode_reached(reached)) == reached


def test_questions_and_answers_come_back() -> None:
    asked = Asked(
        (PassingQuestion(StreamKey(1, 17, 0), (3,)), PassingQuestion(StreamKey(2, 1, 3), (3, 4)))
    )
    assert decode(encode_asked(asked)) == asked
    passed = Passed(dict.fromkeys(asked.questions, 5))
    assert decode(encode_passed(passed)) == passed


@pytest.mark.parametrize(
    "found",
    [
        {"v": 1, "asked": 5},
        {"v": 1, "asked": [[1, 2, 3]]},
        {"v": 1, "asked": [[1, 2, 3, 4, 4]]},
        {"v": 1, "asked": [[1, 2, 3, -4]]},
        {"v": 1, "asked": [[1, 2, 3, "4"]]},
        {"v": 1, "asked": [[1, 2, 3, 4]] * 1_001},
        {"v": 1, "passed": [[1, 2, 3, 4]]},
        {"v": 1, "passed": [[]]},
        {"v": 2, "from": 1, "allows": []},
        {"v": 1, "from": "1", "allows": []},
        {"v": 1, "from": 1, "allows": "#"},
        {"v": 1, "from": 1, "allows": ["a/#/b"]},
        {"v": 1, "from": 1, "allows": [5]},
        {"v": 1, "from": 1},
        {"v": 1, "reached": [3]},
        {"v": 1, "reached": {"x": 3}},
        {"v": 1, "reached": {"3": "x"}},
        {"v": 1, "interest": 5},
        {"v": 1, "interest": {"x": None}},
        {"v": 1, "interest": {"3": [1, [3], []]}},
        {"v": 1, "interest": {"3": ["1", [3], [], 0]}},
        {"v": 1, "interest": {"3": [1, ["3"], [], 0]}},
        {"v": 1, "interest": {"3": [1, [3], ["a/#/b"], 0]}},
        {"v": 1, "interest": {"3": [1, [3], ["f"] * 10_001, 0]}},
    ],
)
def test_odd_words_are_refused(found: dict[str, object]) -> None:
    with pytest.raises(InvalidWord):
        decode(json.dumps(found).encode())
