"""Actions as they are shown to who may not change rules."""

from typing import Any

import pytest

from rules.masking import mask_actions
from rules.model import ActionSpec

URL = "https://hooks.example:8443"
PLAIN = {
    "url": URL,
    "method": "PUT",
    "timeout_seconds": 2.5,
    "concurrency": 1,
    "verify_tls": False,
    "retry": {"attempts": 3, "give_up_after_seconds": 60.5},
}

MASKED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"url": URL}, {"url": URL}),
    ({"url": f"{URL}/"}, {"url": f"{URL}/"}),
    ({"url": f"{URL}/T000/B000/x"}, {"url": f"{URL}/***"}),
    ({"url": f"{URL}?key=abc"}, {"url": f"{URL}/***"}),
    ({"url": f"{URL}/${{site}}"}, {"url": f"{URL}/${{site}}"}),
    ({"url": f"{URL}/a?k=${{$secret.hook}}"}, {"url": f"{URL}/a?k=${{$secret.hook}}"}),
    ({"url": f"{URL}/line\nbreak"}, {"url": f"{URL}/***"}),
    ({"url": "no address"}, {"url": "***"}),
    (
        {"url": URL, "headers": {"Authorization": "Bearer TOPSECRET", "X-Site": "${site}"}},
        {"url": URL, "headers": {"Authorization": "***", "X-Site": "${site}"}},
    ),
    (
        {"url": URL, "headers": {"Authorization": "Bearer ${$secret.hook}", "X": ""}},
        {"url": URL, "headers": {"Authorization": "Bearer ${$secret.hook}", "X": ""}},
    ),
    ({"url": URL, "headers": {"X": "${a}\n${b}"}}, {"url": URL, "headers": {"X": "***"}}),
    ({"url": URL, "headers": {"X": "a\\\"${b}'"}}, {"url": URL, "headers": {"X": "***"}}),
    ({"url": URL, "body": '{"routing_key": "abc"}'}, {"url": URL, "body": "***"}),
    ({"url": URL, "body": "${.}"}, {"url": URL, "body": "${.}"}),
    (PLAIN, PLAIN),
]
"""Arguments of `http` as defined, and as they are shown."""


@pytest.mark.parametrize(("args", "shown"), MASKED)
def test_what_may_be_secret_is_masked(args: dict[str, Any], shown: dict[str, Any]) -> None:
    (one,) = mask_actions([ActionSpec(function="http", args=args)])
    assert one.args == shown


def test_fallbacks_are_masked_and_other_functions_are_not() -> None:
    hook = ActionSpec(function="http", args={"url": "https://a.example/T0/B0"})
    other = ActionSpec(function="log", args={"topic": "t", "headers": {"a": "b"}}, fallback=(hook,))
    (shown,) = mask_actions([other])
    assert shown.args == other.args
    assert shown.fallback[0].args == {"url": "https://a.example/***"}
    assert other.fallback[0].args == {"url": "https://a.example/T0/B0"}, "the rule itself stays"
