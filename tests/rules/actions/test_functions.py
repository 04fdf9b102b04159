"""What the module of an action declares once is in force everywhere."""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import rules.actions
from rules.actions import CONNECTION_KINDS, FUNCTIONS
from rules.actions.connections import ConnectionKind, ForTenants
from rules.runner.services import RunnerServices
from rules.runner.settings import RulesSettings


def test_every_module_with_a_function_is_there() -> None:
    names = [one.name for one in iter_modules([str(Path(rules.actions.__file__).parent)])]
    modules = [import_module(f"rules.actions.{name}") for name in names]
    declared = [one.FUNCTION for one in modules if hasattr(one, "FUNCTION")]
    assert sorted(one.name for one in declared) == sorted(FUNCTIONS)


def test_every_function_with_a_connection_has_its_kind_in_the_settings() -> None:
    named = [one for one in FUNCTIONS.values() if "connection" in one.arguments.model_fields]
    assert [one.connection for one in named] == list(CONNECTION_KINDS)
    for kind in CONNECTION_KINDS:
        with pytest.raises(ValueError, match=rf"connections\.c\.{kind.name}"):
            RulesSettings.model_validate({"connections": {"c": {"kind": kind.name, "odd": 1}}})


def test_a_kind_without_a_client_is_found_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = ConnectionKind[object](ForTenants, "rules.runner.cluster:open_nothing", example="c")
    monkeypatch.setattr("rules.runner.services.CONNECTION_KINDS", (kind,))
    with pytest.raises(AttributeError, match="open_nothing"):
        RunnerServices(RulesSettings(), None, None, print)  # type: ignore[arg-type]
