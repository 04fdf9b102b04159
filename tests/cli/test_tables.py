import pytest

from cli.shared.tables import print_table


def test_columns_are_as_wide_as_what_they_hold(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "n"), [("a long name", "1"), ("ü", "")])
    assert capsys.readouterr().out == "name         n\na long name  1\nü\n"


def test_nothing_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name",), [("\x1b[2J\n\u202e",)])
    assert capsys.readouterr().out == "name\n\\x1b[2J\\n\\u202e\n"
