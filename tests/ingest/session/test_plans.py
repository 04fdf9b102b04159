"""Which topics are asked for anew when a filter changes; that no answer is old, see
`test_subscriptions.py`.
"""

import pytest

from ingest.session import plans
from ingest.session.plans import Plans
from tests.memory import kept_bytes

TOPICS = ("a", "a/b", "a/b/c", "a/b/c/d", "a/x", "b", "/b")


def kept_after(topic_filter: str) -> set[str]:
    found: Plans[str] = Plans()
    for topic_name in TOPICS:
        found.put("t", topic_name, topic_name)
    found.put("other", "a", "a")
    found.forget("t", topic_filter)
    return {topic_name for tenant, topic_name in found.of_topic if tenant == "t"}


@pytest.mark.parametrize(
    ("topic_filter", "forgotten"),
    [
        ("a/b", {"a/b"}),
        ("c", set()),
        ("a/b/#", {"a/b", "a/b/c", "a/b/c/d"}),
        ("a/b/c/d/+", {"a/b/c", "a/b/c/d"}),  # no more than three levels are told apart
        ("a/+/c", {"a", "a/b", "a/b/c", "a/b/c/d", "a/x"}),
        ("/+", {"/b"}),
        ("c/#", set()),
        ("+/b", set(TOPICS)),
        ("#", set(TOPICS)),
    ],
)
def test_a_filter_makes_forget_what_begins_as_it_does(
    topic_filter: str, forgotten: set[str]
) -> None:
    assert set(TOPICS) - kept_after(topic_filter) == forgotten


def test_what_is_kept_is_bounded_whatever_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 10)
    found: Plans[int] = Plans()

    def come_and_go() -> None:
        for number in range(1000):
            found.put("t", f"a/{number}", number)
            found.forget("t", f"a/{number}")

    assert kept_bytes(come_and_go) < 10_000
    for number in range(1000):
        found.put("t", f"a/{number}", number)
        assert found.of_topic["t", f"a/{number}"] == number
        assert len(found.of_topic) <= 10
