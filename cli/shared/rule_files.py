"""Rules in files compared with those of the running system."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any, Literal, NoReturn

from mqlake.errors import OperationalError
from rules.documents import DocumentError, content_of, read_documents, write_document
from rules.errors import RuleError
from rules.model import RuleBody

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class RuleInFile:
    """A rule of a file."""

    body: RuleBody
    path: Path


@dataclass(frozen=True, slots=True)
class Existing:
    """A rule of the running system."""

    version: int
    body: RuleBody


@dataclass(frozen=True, slots=True)
class RuleFileChange:
    """Change that makes a rule equal to its file."""

    kind: Literal["create", "change", "delete"]
    rule_id: str
    before: Existing | None
    after: RuleBody | None

    def diff(self) -> list[str]:
        """Return the lines of a unified diff, without its two head lines."""
        old = "" if self.before is None else write_document(self.rule_id, self.before.body)
        new = "" if self.after is None else write_document(self.rule_id, self.after)
        return list(unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=3))[2:]


def read_files(paths: Iterable[Path]) -> dict[str, RuleInFile]:
    """Return the rules of files and folders by identifier; their content is not looked at.

    Raises:
        OperationalError: A file cannot be read.
        DocumentError: It has something else than rules, or two of the same identifier.
    """
    found: dict[str, RuleInFile] = {}
    for path in _files(paths):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise OperationalError(f"{path} cannot be read: {exc}") from exc
        for document in read_documents(text, str(path)):
            if document.id in found:
                raise DocumentError(
                    f"{path}: rule {document.id} stands in {found[document.id].path} too"
                )
            found[document.id] = RuleInFile(content_of(document), path)
    return found


def refuse(rule_id: str, path: Path, problem: Mapping[str, Any]) -> NoReturn:
    """Tell the error in a rule of a file, as the API has found it.

    Raises:
        DocumentError: Always.
    """
    places = {name: problem[name] for name in ("line", "column", "fragment", "hint")}
    error = RuleError(problem["problem"], **places)
    raise DocumentError(f"{path}: rule {rule_id}: {error}") from error


def read_existing(items: Iterable[Mapping[str, Any]]) -> dict[str, Existing]:
    """Return rules as the API lists them, by identifier."""
    return {
        item["id"]: Existing(
            item["version"], RuleBody(**{name: item[name] for name in RuleBody.model_fields})
        )
        for item in items
    }


def plan(
    wanted: Mapping[str, RuleInFile], existing: Mapping[str, Existing], *, prune: bool
) -> list[RuleFileChange]:
    """Return the changes to be made, by identifier; deletions only to prune."""
    changes: list[RuleFileChange] = []
    for rule_id in sorted({*wanted, *existing}):
        before = existing.get(rule_id)
        after = wanted[rule_id].body if rule_id in wanted else None
        if after is None:
            if prune:
                changes.append(RuleFileChange("delete", rule_id, before, None))
        elif before is None:
            changes.append(RuleFileChange("create", rule_id, None, after))
        elif before.body != after:
            changes.append(RuleFileChange("change", rule_id, before, after))
    return changes


def _files(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(one for one in path.rglob("*") if one.suffix in SUFFIXES)
        else:
            found.append(path)
    return found
