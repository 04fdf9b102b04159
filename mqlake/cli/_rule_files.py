"""Rules in files compared with those of the running system."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any, Literal

from mqlake.errors import OperationalError
from rules.actions import check_actions
from rules.documents import DocumentError, content_of, read_documents, write_document
from rules.errors import RuleError
from rules.language import compile_rule
from rules.model import RuleBody

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Existing:
    """A rule of the running system."""

    version: int
    body: RuleBody


@dataclass(frozen=True, slots=True)
class Change:
    """What would make a rule what its file says."""

    kind: Literal["create", "change", "delete"]
    rule_id: str
    before: Existing | None
    after: RuleBody | None

    def diff(self) -> list[str]:
        """Return the lines of a unified diff, without its two head lines."""
        old = "" if self.before is None else write_document(self.rule_id, self.before.body)
        new = "" if self.after is None else write_document(self.rule_id, self.after)
        return list(unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=3))[2:]


def read_files(paths: Iterable[Path]) -> dict[str, RuleBody]:
    """Return the rules of files and folders by identifier; each is sound.

    Raises:
        OperationalError: A file cannot be read.
        DocumentError: It has something else than sound rules, or two of the same identifier.
    """
    found: dict[str, RuleBody] = {}
    origins: dict[str, Path] = {}
    for path in _files(paths):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise OperationalError(f"{path} cannot be read: {exc}") from exc
        for document in read_documents(text, str(path)):
            if document.id in found:
                raise DocumentError(
                    f"{path}: rule {document.id} stands in {origins[document.id]} too"
                )
            body = content_of(document)
            try:
                compile_rule(body.sql)
                check_actions(body.actions)
            except RuleError as exc:
                raise DocumentError(f"{path}: rule {document.id}: {exc}") from exc
            found[document.id] = body
            origins[document.id] = path
    return found


def read_existing(items: Iterable[Mapping[str, Any]]) -> dict[str, Existing]:
    """Return rules as the API lists them, by identifier."""
    return {
        item["id"]: Existing(
            item["version"], RuleBody(**{name: item[name] for name in RuleBody.model_fields})
        )
        for item in items
    }


def plan(
    wanted: Mapping[str, RuleBody], existing: Mapping[str, Existing], *, prune: bool
) -> list[Change]:
    """Return what is to be done, by identifier; deletions only to prune."""
    changes: list[Change] = []
    for rule_id in sorted({*wanted, *existing}):
        before, after = existing.get(rule_id), wanted.get(rule_id)
        if after is None:
            if prune:
                changes.append(Change("delete", rule_id, before, None))
        elif before is None:
            changes.append(Change("create", rule_id, None, after))
        elif before.body != after:
            changes.append(Change("change", rule_id, before, after))
    return changes


def _files(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(one for one in path.rglob("*") if one.suffix in SUFFIXES)
        else:
            found.append(path)
    return found
