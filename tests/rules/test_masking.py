"""Actions as they are shown to who may not change rules."""

from typing import Any

import pytest

from rules.masking import mask_actions
from rules.model import ActionSpec
from tests.rules.masked import MASKED


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
