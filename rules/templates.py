"""Templates in the arguments of actions: `plant/${site}/alarm`.

`${a.b[1].c}` is a field of the output row (elements count from 1, from the end with -1), `${.}` the
whole row as JSON, `${$output}` and the other names of `OUTPUT_FIELDS` tell of the output itself,
`${$secret.NAME}` is a secret that the process which runs actions knows.
`${$}` is a dollar sign, to write `${$}{x}` for a literal `${x}`. Text goes in as it is, everything
else as JSON; a field that is missing is `null`, unless the place cannot do without it.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, Self

from mqlake.errors import MqlakeError
from rules.errors import RuleError

MAX_TEMPLATE_CHARACTERS: Final = 65_536

_PLACEHOLDER: Final = re.compile(r"\$\{([^{}]*)\}")
_PATH: Final = re.compile(r"[^\s.\[\]{}$]+(?:\.[^\s.\[\]{}$]+|\[-?[0-9]{1,6}\])*")
_STEP: Final = re.compile(r"\[(-?[0-9]+)\]|([^.\[\]]+)")

SECRET_NAME: Final = "[a-z0-9][a-z0-9_-]{0,62}"  # noqa: S105 - a pattern
_SECRET: Final = re.compile(rf"\$secret\.({SECRET_NAME})")

_WHOLE_ROW: Final = "."
_DOLLAR: Final = "$"


class TemplateScope(Protocol):
    """Values that fill a template."""

    @property
    def text(self) -> str:
        """The row as JSON."""
        ...

    @property
    def row(self) -> dict[str, Any]:
        """The row, parsed when it is first asked for."""
        ...

    def field(self, name: str) -> str:
        """Return one of `OUTPUT_FIELDS`."""
        ...


OUTPUT_FIELDS: Final = {
    "$output": "identifier of the output: rule, version and position, the same when it comes again",
    "$rule": "identifier of the rule",
    "$version": "version of the rule",
    "$topic": "topic name of the message, or the event",
    "$clientid": "client identifier of the publisher, or of the client that the event is of",
    "$timestamp": "when the message was received, milliseconds UTC",
}


class MissingField(MqlakeError):  # noqa: N818 - a fact about a row
    """A field that a place cannot do without is missing or null."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One `${…}`."""

    name: str
    steps: tuple[str | int, ...]
    """Path of a field; empty for the whole row, facts about the output, and a secret."""
    secret: str | None = None
    """Name of a secret, which `Template.with_secrets` fills in."""

    def value(self, scope: TemplateScope) -> Any:
        """Return the JSON value; None when it is missing."""
        if self.steps:
            return _find(scope.row, self.steps)
        return scope.row if self.name == _WHOLE_ROW else scope.field(self.name)

    def text(self, scope: TemplateScope) -> str:
        if self.name == _WHOLE_ROW:
            return scope.text
        return to_text(self.value(scope))


@dataclass(frozen=True)
class Template:
    """A parsed template: literal text and placeholders in turn."""

    parts: tuple[str | Placeholder, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Take a template apart.

        Raises:
            RuleError: A placeholder is not a path, or the template is too long.
        """
        if len(text) > MAX_TEMPLATE_CHARACTERS:
            raise RuleError(f"template is longer than {MAX_TEMPLATE_CHARACTERS} characters")
        parts: list[str | Placeholder] = []
        literal, end = "", 0
        for found in _PLACEHOLDER.finditer(text):
            literal += _literal(text[end : found.start()])
            end = found.end()
            if found[1] == _DOLLAR:
                literal += _DOLLAR
                continue
            if literal:
                parts.append(literal)
            parts.append(_placeholder(found[1]))
            literal = ""
        literal += _literal(text[end:])
        if literal:
            parts.append(literal)
        return cls(tuple(parts))

    @cached_property
    def placeholders(self) -> tuple[Placeholder, ...]:
        return tuple(part for part in self.parts if isinstance(part, Placeholder))

    @property
    def secrets(self) -> frozenset[str]:
        """The names of its secrets."""
        return frozenset(part.secret for part in self.placeholders if part.secret is not None)

    @property
    def literals(self) -> tuple[str, ...]:
        return tuple(part for part in self.parts if isinstance(part, str))

    def with_secrets(self, read: Callable[[str], str]) -> "Template":
        """Return it with its secrets as literal text."""
        return Template(
            tuple(
                part if isinstance(part, str) or part.secret is None else read(part.secret)
                for part in self.parts
            )
        )

    @cached_property
    def is_row(self) -> bool:
        """Tell whether it is the row and nothing else."""
        return len(self.parts) == 1 and self.placeholders == (_placeholder(_WHOLE_ROW),)

    @cached_property
    def constant(self) -> str | None:
        """The text when nothing has to be filled in, else None."""
        return None if self.placeholders else "".join(map(str, self.parts))

    def render(
        self,
        scope: TemplateScope,
        *,
        needs_all: bool = False,
        escape: Callable[[str], str] | None = None,
    ) -> str:
        """Fill it in.

        Args:
            scope: An output.
            needs_all: Do not take `null` for a field that is missing.
            escape: Applied to the values filled in.

        Raises:
            MissingField: With `needs_all`, for a field that is missing or null.
        """
        filled = []
        for part in self.parts:
            if isinstance(part, str):
                filled.append(part)
                continue
            if needs_all and part.value(scope) is None:
                raise MissingField(f"field {part.name} is missing in the row")
            text = part.text(scope)
            filled.append(text if escape is None else escape(text))
        return "".join(filled)


def to_text(value: Any) -> str:
    """Return the text of a JSON value."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _literal(text: str) -> str:
    at = text.find("${")
    if at >= 0:
        raise RuleError("placeholder is not closed", fragment=text[at : at + 40], hint="write }")
    return text


def _placeholder(name: str) -> Placeholder:
    if name == _WHOLE_ROW or name in OUTPUT_FIELDS:
        return Placeholder(name, ())
    if found := _SECRET.fullmatch(name):
        return Placeholder(name, (), found[1])
    if not _PATH.fullmatch(name):
        hint = "write a path like a.b[1], or . for the whole row"
        if name.startswith("$"):
            hint = "the names are " + ", ".join((*OUTPUT_FIELDS, "$secret.NAME"))
        raise RuleError("placeholder is not a path", fragment="${" + name + "}", hint=hint)
    steps = tuple(int(index) if index else step for index, step in _STEP.findall(name))
    return Placeholder(name, steps)


def _find(value: Any, steps: tuple[str | int, ...]) -> Any:
    for step in steps:
        if isinstance(step, str):
            if not isinstance(value, dict):
                return None
            value = value.get(step)
        else:
            if not isinstance(value, list) or not 1 <= abs(step) <= len(value):
                return None
            value = value[step - 1 if step > 0 else step]
    return value
