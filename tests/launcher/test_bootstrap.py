import ast
import importlib.util
import sys
from pathlib import Path

import pytest

from launcher import bootstrap


def test_python_that_is_too_old_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    assert bootstrap.main(["requirements.lock", "python"]) == 1
    assert capsys.readouterr().err == (
        "mqlake: python3 is 3.9, expected 3.11 or newer: install one\n"
    )


def test_python_without_venv_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert bootstrap.main(["requirements.lock", "python"]) == 1
    assert capsys.readouterr().err == (
        "mqlake: python3 has no venv: install it (Debian: apt install python3-venv)\n"
    )


def test_an_old_python_understands_the_file_that_refuses_it() -> None:
    source = Path(bootstrap.__file__).read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 6))
