"""The file of a process's settings, written from their class: every key with its default.

All keys are commented out, so the file as it is changes nothing. A key without a default is shown
by the example of its field.
"""

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mqlake.settings import ProcessSettings

WIDTH: Final = 120
"""Longest line of a comment, in characters."""

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def render(settings: type[ProcessSettings]) -> str:
    """Return the TOML file of a process, as `conf/` has it."""
    prefix = settings.model_config["env_prefix"]
    head = (
        f"{_docstring(settings)}\n\nEach key is shown with its default. The environment wins: "
        f"{prefix}LOG_LEVEL=DEBUG, in a table {prefix}METRICS__PORT=9464."
    )
    # Fields of every process come last.
    fields = settings.model_fields
    ordered = sorted(fields, key=lambda name: name in ProcessSettings.model_fields)
    blocks = [_comment(head)]
    blocks += ["\n".join(_key(name, fields[name])) for name in ordered if not _kinds(fields[name])]
    seen: set[type[BaseModel]] = set()
    for name in ordered:
        blocks += _tables(name, fields[name], seen, is_shown=True)
    return "\n\n".join(blocks) + "\n"


def _tables(
    path: str, field: FieldInfo, seen: set[type[BaseModel]], *, is_shown: bool
) -> Iterator[str]:
    """Yield the tables of a field, one for each kind that it may have, and those inside them.

    Members of a list share the keys that all kinds have: the first one shows them. Each comment
    is there once, and of a kind that was `seen` before only the keys that it must have.
    """
    kinds = _kinds(field)
    common = _common(kinds) if _shape(field.annotation) is tuple else set()
    told: set[tuple[str, str | None]] = set()
    if kinds[1:] and field.description:
        yield _comment(field.description)
    for position, kind in enumerate(kinds):
        header = _header(path, field, position)
        is_set = is_shown and isinstance(field.default, kind) and not _is_required(kind)
        about = _docstring(kind) if kinds[1:] else field.description or _docstring(kind)
        lines = [_comment(about), header if is_set else f"#{header}"]
        for name, one in sorted(kind.model_fields.items(), key=lambda item: item[0] != "kind"):
            described = (name, one.description)
            is_known = kind in seen and not one.is_required()
            if _kinds(one) or is_known or (position and described in common):
                continue
            lines += _key(name, one, is_told=described in told or kind in seen)
            told.add(described)
        yield "\n".join(lines)
        seen.add(kind)
        for name, one in kind.model_fields.items():
            if _kinds(one):
                yield from _tables(f"{header.strip('[]')}.{name}", one, seen, is_shown=is_set)


def _common(kinds: list[type[BaseModel]]) -> set[tuple[str, str | None]]:
    """Return which keys several kinds have with the same meaning: all of them."""
    return set.intersection(*(_described(kind) for kind in kinds)) if kinds[1:] else set()


def _described(kind: type[BaseModel]) -> set[tuple[str, str | None]]:
    return {(name, one.description) for name, one in kind.model_fields.items() if name != "kind"}


def _is_required(kind: type[BaseModel]) -> bool:
    """Tell whether an empty table of this kind would be refused."""
    return any(one.is_required() for one in kind.model_fields.values())


def _header(path: str, field: FieldInfo, position: int) -> str:
    """Return the head of the table of one kind: of a group, of a list's member, or a named one."""
    shape = _shape(field.annotation)
    if shape is tuple:
        return f"[[{path}]]"
    return f"[{path}.{_examples(field)[position]}]" if shape is dict else f"[{path}]"


def _key(name: str, field: FieldInfo, *, is_told: bool = False) -> Iterator[str]:
    """Yield the lines of one key: its comment, then the key with its value and the bounds of it."""
    if field.description and not is_told:
        yield _comment(field.description)
    facts = list(_bounds(field))
    if field.is_required():
        facts.insert(0, "required")
    elif field.default in (None, PydanticUndefined):
        facts.insert(0, "an example, not a default")
    line = f"#{name} = {_toml(_value(field))}"
    yield f"{line}  # {'; '.join(facts)}" if facts else line


def _value(field: FieldInfo) -> object:
    """Return the default of a key, else its only value, else its example."""
    if field.default not in (None, PydanticUndefined):
        return field.default
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return choices[0] if len(choices) == 1 else _examples(field)[0]


def _examples(field: FieldInfo) -> list[Any]:
    assert field.examples, f"{field!r} has neither a default nor an example"
    return field.examples


def _bounds(field: FieldInfo) -> Iterator[str]:
    """Yield which values a field may have."""
    if get_origin(field.annotation) is Literal:
        choices = [_toml(one) for one in get_args(field.annotation)]
        if choices[1:]:
            yield f"{', '.join(choices[:-1])} or {choices[-1]}"
    least = next((one.ge for one in field.metadata if isinstance(one, Ge)), None)
    most = next((one.le for one in field.metadata if isinstance(one, Le)), None)
    above = next((one.gt for one in field.metadata if isinstance(one, Gt)), None)
    if least is not None and most is not None:
        yield f"{least} to {most}"
    elif above is not None:
        yield f"more than {above}" + ("" if most is None else f", at most {most}")
    elif least:
        yield f"at least {least}"


def _shape(annotation: object) -> object:
    """Return `tuple` or `dict` for many of something, None for one of it."""
    for one in _alternatives(annotation):
        if get_origin(one) in (tuple, dict):
            return get_origin(one)
    return None


def _kinds(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the models whose fields are keys of a field's tables; none for a plain key."""
    return list(_models(field.annotation))


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    for one in _alternatives(annotation):
        origin = get_origin(one)
        if origin is tuple:
            yield from _models(get_args(one)[0])
        elif origin is dict:
            yield from _models(get_args(one)[1])
        elif isinstance(one, type) and issubclass(one, BaseModel):
            yield one


def _alternatives(annotation: object) -> Iterator[object]:
    """Yield the members of a union, without their annotations."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for one in get_args(annotation):
            yield from _alternatives(one)
    else:
        yield annotation


def _toml(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_toml_key(key)} = {_toml(one)}" for key, one in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Enum):
        return _toml(value.value)
    if isinstance(value, SecretStr):
        return _toml(value.get_secret_value())
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key)


def _docstring(kind: type[BaseModel]) -> str:
    return inspect.cleandoc(kind.__doc__ or "")


def _comment(text: str) -> str:
    """Return paragraphs as lines of comment."""
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        lines += textwrap.wrap(
            paragraph,
            WIDTH,
            initial_indent="# ",
            subsequent_indent="# ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)
