"""Words and openings that documents, docstrings and comments do without.

Each of them hides who does what, or says less than the type beside it.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.paths import CHECKOUT

FOLDERS = (
    "api",
    "bench",
    "cli",
    "ingest",
    "lab",
    "launcher",
    "mqlake",
    "resilience",
    "rules",
    "streaming",
)
DOCUMENTS = sorted({*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")})

WORD = re.compile(r"\b(told|anew|nobody|somebody|so many|of now|likewise)\b", re.IGNORECASE)
QUESTION = re.compile(r"(?:Whether|Which|What|Who|Whose)\b")
"""Begins a summary that asks instead of saying."""

FRAGMENT = re.compile(
    r"(?:\A|^ *[*\w]+(?:, [*\w]+)*: )(?:Of|Where|As given)\b",
    re.MULTILINE,
)
"""Begins the description of a thing or an argument that is no sentence, as in "Of the gateway."."""

ARGUMENTS = re.compile(r"^ *[*\w]+(?:, [*\w]+)*: ", re.MULTILINE)
"""Names of arguments or attributes, before their descriptions."""

CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def faults(text: str) -> Iterator[str]:
    """Yield what is refused in a docstring."""
    plain = ARGUMENTS.sub("", CODE.sub("", text))
    yield from (f"word {found[0]!r}" for found in WORD.finditer(plain))
    if QUESTION.match(text):
        yield "begins with a question word"
    yield from (f"fragment {found[0]!r}" for found in FRAGMENT.finditer(text))


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, also of those behind constants and fields."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for one in node.body:
                value = one.value if isinstance(one, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield one.lineno, value.value


def comments(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    if not WORD.search(text):
        return  # tokens are slow to make
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def refused(folder: str) -> list[str]:
    """Return the places in a folder, each with what is refused there."""
    found = []
    for path in sorted((CHECKOUT / folder).rglob("*.py")):
        name = path.relative_to(CHECKOUT).as_posix()
        for line, text in docstrings(path):
            found += [f"{name}:{line}: {fault}" for fault in faults(text)]
        for line, text in comments(path):
            words = WORD.findall(CODE.sub("", text))
            found += [f"{name}:{line}: word {word!r}" for word in words]
    return found


def test_documents_have_none_of_the_words() -> None:
    found = [
        f"{path.relative_to(CHECKOUT).as_posix()}: {line.strip()}"
        for path in DOCUMENTS
        for line in CODE.sub("", path.read_text(encoding="utf-8")).splitlines()
        if WORD.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_and_comments_have_none_of_them(folder: str) -> None:
    found = refused(folder)
    assert not found, "\n".join(found)


def test_a_docstring_is_judged_by_its_beginnings_and_words() -> None:
    assert list(faults("Whether it is there.")) == ["begins with a question word"]
    args = "Open it.\n\nArgs:\n    gateway: Of the gateway.\n    a, b: Where they are."
    assert len(list(faults(args))) == 2
    assert list(faults("Nobody is told `told`.")) == ["word 'Nobody'", "word 'told'"]
    assert list(faults("Do it.\n\nArgs:\n    told: Events that a rule asks for.")) == []
    assert list(faults("Open it.\n\nArgs:\n    path: File of settings; None without one.")) == []
