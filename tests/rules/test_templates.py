"""Templates in arguments of actions."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.records.outputs import Output, Position
from rules.actions.contract import Work
from rules.errors import RuleError
from rules.templates import MissingField, Template


def work_for(row: Any, **more: Any) -> Work:
    """Return an output with this row on its way through an action."""
    fields: dict[str, Any] = {
        "tenant": "default",
        "rule": "r1",
        "version": 3,
        "row": json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode(),
        "position": Position("i", 1, 20, 0),
        "received_at_ms": 1_700_000_000_000,
        "topic_name": "plant/a",
        "client_id": "sensor",
        **more,
    }
    return Work(Output(**fields), 0, 1, 5)


ROW = {
    "t": 21.5,
    "n": 7,
    "name": "a°",
    "ok": True,
    "none": None,
    "o": {"a.b": 1, "x": [1, {"y": 2}]},
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", ""),
        ("plain", "plain"),
        ("${t}", "21.5"),
        ("${n}/${name}", "7/a°"),
        ("${ok}", "true"),
        ("${none}", "null"),
        ("${missing}", "null"),
        ("${missing.deeper[1].still}", "null"),
        ("${o.x}", '[1,{"y":2}]'),
        ("${o.x[1]}", "1"),
        ("${o.x[2].y}", "2"),
        ("${o.x[-1].y}", "2"),
        ("${o.x[0]}", "null"),
        ("${o.x[3]}", "null"),
        ("${t.a}", "null"),
        ("${$}{t}", "${t}"),
        ("$t $ {t}", "$t $ {t}"),
        ("${.}", json.dumps(ROW, ensure_ascii=False, separators=(",", ":"))),
        ("${$output}", "r1/3/i:1:20:0"),
        ("${$rule}-${$version}-${$topic}", "r1-3-plant/a"),
        ("${$clientid}-${$timestamp}", "sensor-1700000000000"),
    ],
)
def test_a_template_is_filled_from_the_row(template: str, text: str) -> None:
    assert Template.parse(template).render(work_for(ROW)) == text


@pytest.mark.parametrize(
    "template",
    [
        "${",
        "${a",
        "${}",
        "${a b}",
        "${a..b}",
        "${.a}",
        "${a.}",
        "${a[x]}",
        "${[1]}",
        "${$no}",
        "${a${b}}",
    ],
)
def test_what_is_no_placeholder_is_refused(template: str) -> None:
    with pytest.raises(RuleError):
        Template.parse(template)


@pytest.mark.parametrize("template", ["${missing}", "a/${none}/b", "${o.x[9]}"])
def test_a_place_that_needs_all_does_not_take_null(template: str) -> None:
    with pytest.raises(MissingField):
        Template.parse(template).render(work_for(ROW), needs_all=True)


def test_what_is_filled_in_is_escaped_and_the_template_is_not() -> None:
    template = Template.parse("a/b?${name}")
    assert template.render(work_for({"name": "x/y"}), escape=str.upper) == "a/b?X/Y"


def test_a_filled_in_text_is_not_a_template() -> None:
    assert Template.parse("${a}").render(work_for({"a": "${b}", "b": 1})) == "${b}"


@given(st.text(max_size=60))
def test_any_text_is_a_template_or_an_error(text: str) -> None:
    try:
        template = Template.parse(text)
    except RuleError:
        return
    template.render(work_for(ROW))


@given(st.text(alphabet=st.characters(exclude_characters="$"), max_size=30))
def test_text_without_a_dollar_sign_is_itself(text: str) -> None:
    template = Template.parse(text)
    assert template.constant == text
    assert template.render(work_for({})) == text
