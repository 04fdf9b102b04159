"""What the runner takes of activations, whoever wrote them: actions, and nothing that runs."""

from typing import Any

import pytest

from mqlake.records.messages import INBOUND, LogRecord
from mqlake.records.rules import (
    Activation,
    OffsetRange,
    RulesKey,
    Span,
    decode_activation,
    encode_activation,
    rules_key,
)
from rules.model import ActionSpec
from rules.runner.definitions import Definitions

FORGED = ({"function": "console", "args": {}},)
GENUINE = ({"function": "log", "args": {"topic": "t"}},)


class Poison(Span):
    """A span whose code nobody may look at."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("expression", "plan", "schema"):
            raise AssertionError(f"the runner has read {name}")
        return super().__getattribute__(name)


def activation(actions: tuple[dict[str, Any], ...]) -> Activation:
    code = "reflect('java.lang.System', 'exit', 1)"
    span = Span(1, ("a",), code, actions, None, {INBOUND: OffsetRange((0,))})
    return Activation("acme", "r", "running", 1, 1, spans=(span,))


def record(kind: Any, value: bytes, version: int | None = None) -> LogRecord:
    return LogRecord(0, 0, 1, rules_key(RulesKey(kind, "acme", "r", version)), value, [])


def known() -> Definitions:
    return Definitions(lambda _: None, lambda _: None)


def test_no_code_of_an_activation_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(value: bytes) -> Activation:
        found = decode_activation(value)
        (span,) = found.spans
        fields = (span.version, span.filters, None, span.actions, None, span.sources)
        return Activation("acme", "r", "running", 1, 1, spans=(Poison(*fields),))

    monkeypatch.setattr("rules.runner.definitions.decode_activation", poisoned)
    definitions = known()
    definitions.apply([record("activation", encode_activation(activation(FORGED)))])
    assert definitions.find("acme", "r", 1) == tuple(map(ActionSpec.model_validate, FORGED))


def test_an_activation_can_do_no_more_than_a_version_which_nobody_signs() -> None:
    by_activation, by_version = known(), known()
    by_activation.apply([record("activation", encode_activation(activation(FORGED)))])
    by_version.apply([record("version", b'{"actions": [{"function": "console"}]}', 1)])
    assert by_activation.find("acme", "r", 1) == by_version.find("acme", "r", 1)
    for one in (by_activation, by_version):
        assert one.find("beta", "r", 1) is None, "what it may use is what its tenant may"


def test_a_genuine_activation_takes_the_place_of_a_forged_one() -> None:
    definitions = known()
    for actions in (GENUINE, FORGED, GENUINE):
        definitions.apply([record("activation", encode_activation(activation(actions)))])
    assert definitions.find("acme", "r", 1) == tuple(map(ActionSpec.model_validate, GENUINE))


def test_actions_that_are_none_are_passed_over() -> None:
    definitions = known()
    definitions.apply([record("activation", encode_activation(activation(GENUINE)))])
    odd: tuple[dict[str, Any], ...] = ({"function": "log", "args": {}, "run": "code"},)
    definitions.apply([record("activation", encode_activation(activation(odd)))])
    assert definitions.find("acme", "r", 1) == tuple(map(ActionSpec.model_validate, GENUINE))
