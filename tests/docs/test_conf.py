"""The files in `conf/` are what `bin/mqlake settings` writes, and that is what the classes say."""

import re
import tomllib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import BaseModel, SecretStr, TypeAdapter
from pydantic_core import PydanticUndefined

from cli.shared.settings_file import render
from cli.system.settings import CLASSES, command, settings_class

CONF = Path(__file__).parents[2] / "conf"

FILES = pytest.mark.parametrize("name", CLASSES)


def text_of(name: str) -> str:
    return (CONF / f"{name}.toml").read_text(encoding="utf-8")


def uncommented(name: str) -> dict[str, Any]:
    """Read a file as if every key in it were set."""
    found = re.findall(r"^#?([a-z0-9_]+ = .*|\[.*)", text_of(name), re.MULTILINE)
    return tomllib.loads("\n".join(found))


def plain(value: object) -> object:
    """Return a default as TOML gives it back."""
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def wrong(table: dict[str, Any], kind: type[BaseModel], path: str) -> Iterator[str]:
    """Yield the keys of a table that its class does not have, or has another default for."""
    for key, shown in table.items():
        field = kind.model_fields.get(key)
        if field is None:
            yield f"{path}{key} is unknown"
        elif isinstance(field.default, BaseModel):
            yield from wrong(shown, type(field.default), f"{path}{key}.")
        elif field.default not in (None, PydanticUndefined, ()) and plain(field.default) != shown:
            yield f"{path}{key} = {shown!r}, the class has {field.default!r}"


@FILES
def test_file_is_what_its_class_says(name: str) -> None:
    message = "run: bin/mqlake settings --write conf"
    assert text_of(name) == render(settings_class(name)), message


@FILES
def test_file_as_it_is_changes_nothing(name: str) -> None:
    shipped = tomllib.loads(text_of(name))
    assert all(table == {} for table in shipped.values())
    required = {"connect_token": "t"} if name == "query" else {}
    settings: Any = settings_class(name)
    assert settings(**shipped, **required) == settings(**required)


@FILES
def test_file_shows_every_key_of_the_process_with_its_default(name: str) -> None:
    shown = uncommented(name)
    assert set(shown) == set(settings_class(name).model_fields)
    assert not list(wrong(shown, settings_class(name), ""))


@FILES
def test_no_line_is_longer_than_others(name: str) -> None:
    keys = re.compile(r"#[a-z0-9_]+ = ")
    long = [one for one in text_of(name).splitlines() if len(one) > 120 and not keys.match(one)]
    assert not long


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("gateway", "listeners"),
        ("rules", "connections"),
        ("balancer", "nodes"),
        ("balancer", "proxies"),
        ("balancer", "frontends"),
        ("federation", "neighbors"),
    ],
)
def test_tables_show_all_that_they_must_have(name: str, key: str) -> None:
    annotation: Any = settings_class(name).model_fields[key].annotation
    needed = re.compile(r"^#([a-z0-9_]+) = .*# required", re.MULTILINE)
    kept = {"kind", *needed.findall(text_of(name))}
    tables = uncommented(name)[key]
    several = tables.items() if isinstance(tables, dict) else enumerate(tables)
    least = {one: {k: v for k, v in table.items() if k in kept} for one, table in several}
    read = TypeAdapter(annotation).validate_python(
        least if isinstance(tables, dict) else [*least.values()]
    )
    assert len(read) == len(tables)


def test_command_shows_one_process_and_writes_all(tmp_path: Path) -> None:
    shown = CliRunner().invoke(command, ["rules"])
    assert shown.output == render(settings_class("rules"))
    assert CliRunner().invoke(command, ["--write", str(tmp_path)]).exit_code == 0
    assert {one.stem for one in tmp_path.iterdir()} == set(CLASSES)


@pytest.mark.parametrize("words", [[], ["rules", "--write", "."]])
def test_command_says_what_it_takes(words: list[str]) -> None:
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 2
    assert "name one of api, balancer," in result.output
