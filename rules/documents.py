"""Rules as YAML, for files and for differences that people read.

A document is the user's part of a rule, and its identifier; keys stand in the order of the model,
those with their default are left out, SQL of several lines is a block.
"""

from collections.abc import Iterator
from typing import Any, Final

import yaml
from pydantic import ValidationError

from mqlake.errors import MqlakeError
from rules.model import RuleBody, RuleId


class RuleDocument(RuleBody):
    """A rule in a file."""

    id: RuleId


class DocumentError(MqlakeError):
    """A text is not the YAML of rules."""


_ORDER: Final = ("id", "name", "description", "enable", "sql", "actions")


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # A block cannot hold lines that end in a space.
    is_block = "\n" in text and not any(line != line.rstrip() for line in text.split("\n"))
    style = "|" if is_block else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def write_document(rule_id: str, body: RuleBody) -> str:
    """Return the YAML of a rule."""
    fields = {"id": rule_id, **body.model_dump(mode="json", exclude_defaults=True)}
    ordered = {name: fields[name] for name in _ORDER if name in fields}
    return yaml.dump(ordered, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def read_documents(text: str, origin: str) -> Iterator[RuleDocument]:
    """Yield the rules of a text; documents are separated by `---`.

    Args:
        text: YAML.
        origin: File or argument that it comes from, for the error.

    Raises:
        DocumentError: It is not YAML, or not of rules.
    """
    try:
        found = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError) as exc:
        raise DocumentError(f"{origin} is not YAML: {_one_line(exc)}") from exc
    for fields in found:
        if fields is None:
            continue
        if not isinstance(fields, dict):
            raise DocumentError(f"{origin}: expected a rule with id and sql, got {fields!r}")
        try:
            yield RuleDocument.model_validate(fields)
        except ValidationError as exc:
            raise DocumentError(f"{origin}: {_first(exc)}") from exc


def content_of(document: RuleDocument) -> RuleBody:
    """Return a document without its identifier."""
    return RuleBody(**{name: getattr(document, name) for name in RuleBody.model_fields})


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _first(error: ValidationError) -> str:
    found: dict[str, Any] = dict(error.errors()[0])
    place = ".".join(str(part) for part in found["loc"])
    return f"{place}: {found['msg']}" if place else str(found["msg"])
