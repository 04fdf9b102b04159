"""ARCHITECTURE.md is short, draws the imports as they are and names files and functions that exist.

`bin/test tests/docs/test_architecture.py --rewrite` draws the imports again, and lists those of
inner packages in `docs/design/README.md`.
"""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Final

import grimp
import pytest

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final = ROOT / "ARCHITECTURE.md"
DESIGN: Final = ROOT / "docs" / "design" / "README.md"
MOST_BYTES: Final = 15_000
_BEGIN, _END = "<!-- imports: tests/docs/test_architecture.py -->\n", "\n<!-- end of imports -->"
WALKS: Final = (
    "A PUBLISH",
    "A delivery",
    "A CONNECT with a session",
    "A rule",
    "A query",
)
MOST_HOPS: Final = 12
_FILE: Final = re.compile(r"`([\w/]+\.(?:py|java)|[a-z]\w*(?:/\w+)*/)`")
_HOP: Final = re.compile(r"^(\d+)\. `([\w/]+\.(?:py|java))` `([\w.]+)` ", re.MULTILINE)

Imports = dict[str, set[str]]


def packages() -> list[str]:
    """Return the packages that import-linter knows."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[str] = settings["tool"]["importlinter"]["root_packages"]
    return found


@cache
def imports() -> tuple[Imports, Imports]:
    """Return what each package imports directly, and what each package inside of one does."""
    graph = grimp.build_graph(*packages(), cache_dir=None)
    inside = {
        child
        for package in packages()
        for child in graph.find_children(package)
        if graph.find_children(child)
    }
    outer: Imports = {package: set() for package in packages()}
    inner: Imports = {package: set() for package in inside}
    for module in graph.modules:
        of, within = _names(module, inside)
        for imported in graph.find_modules_directly_imported_by(module):
            package, sub = _names(imported, inside)
            if of != package:
                outer[of].add(package)
            if within in inner and sub != within:
                inner[within].add(sub)
    return outer, inner


def _names(module: str, inside: set[str]) -> tuple[str, str]:
    """Return the package of a module, and the one inside of it, or else the former."""
    package = module.partition(".")[0]
    sub = ".".join(module.split(".")[:2])
    return package, sub if sub in inside else package


def picture() -> str:
    """Draw the packages; one that is reached by way of another one has no arrow of its own."""
    outer, _ = imports()
    lines = ["```mermaid", "flowchart TD"]
    for package, imported in sorted(outer.items()):
        around = set().union(*(_reached(outer, other) for other in imported))
        lines += [f"    {package} --> {other}" for other in sorted(imported - around)]
    return "\n".join([*lines, "```"])


def table() -> str:
    """List the imports of the packages inside of packages."""
    lines = ["| package | imports of its own and of others |", "| --- | --- |"]
    for package, imported in sorted(imports()[1].items()):
        listed = ", ".join(f"`{other}`" for other in sorted(imported))
        lines.append(f"| `{package}` | {listed} |")
    return "\n".join(lines)


def _reached(found: Imports, package: str) -> set[str]:
    return found[package].union(*(_reached(found, other) for other in found[package]))


@pytest.mark.parametrize(("document", "draw"), [(DOCUMENT, picture), (DESIGN, table)])
def test_imports_are_drawn_as_they_are(
    document: Path, draw: Callable[[], str], request: pytest.FixtureRequest
) -> None:
    text = document.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    drawn, found, after = rest.partition(_END)
    assert found, f"{document.name} has no place for the imports"
    if request.config.getoption("--rewrite"):
        document.write_text(f"{before}{_BEGIN}{draw()}{_END}{after}", encoding="utf-8")
    else:
        assert drawn == draw(), "draw them again with --rewrite"


def test_the_document_is_read_in_one_sitting() -> None:
    assert DOCUMENT.stat().st_size <= MOST_BYTES


def test_each_file_that_the_document_names_exists() -> None:
    """A name without a folder is a file anywhere, a folder may be one inside the row's own."""
    there = {path.relative_to(ROOT).as_posix() for path in _sources()}
    names = {name.rpartition("/")[2] for name in there}
    folders = {f"{part.name}/" for name in there for part in Path(name).parents}
    missing = [
        name
        for name in _FILE.findall(DOCUMENT.read_text(encoding="utf-8"))
        if name not in (there if "/" in name else names)
        and not (name.endswith("/") and ((ROOT / name).is_dir() or name in folders))
    ]
    assert missing == []


def _sources() -> list[Path]:
    return [
        path
        for package in (*packages(), "tests")
        for ending in ("py", "java")
        for path in (ROOT / package).rglob(f"*.{ending}")
    ]


def test_the_layers_are_all_packages() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = (
        contract["layers"]
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers" and "containers" not in contract
    )
    named = [name.strip() for layer in layers for name in layer.split("|")]
    assert sorted(named) == sorted(packages())
    there = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert sorted(named) == sorted(there)


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports for types alone count, too."""
    graph = grimp.build_graph(*packages(), cache_dir=None)
    found = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(found).prepare()  # else it says which


def walks() -> dict[str, list[tuple[int, str, str]]]:
    """Return number, file and function of each hop, by walk."""
    text = DOCUMENT.read_text(encoding="utf-8")
    section = text.partition("\n## Five walks\n")[2].partition("\n## ")[0]
    found = {}
    for part in section.split("\n### ")[1:]:
        title, _, hops = part.partition("\n")
        found[title] = [(int(one), path, name) for one, path, name in _HOP.findall(hops)]
        assert len(found[title]) == len(re.findall(r"^\d+\. ", hops, re.MULTILINE)), title
    return found


def test_each_walk_is_there_and_short() -> None:
    found = walks()
    assert tuple(found) == WALKS
    for title, hops in found.items():
        assert 0 < len(hops) <= MOST_HOPS, title
        assert [number for number, *_ in hops] == [*range(1, len(hops) + 1)], title
        assert all(one != other for one, other in pairwise(hops))


def test_each_function_of_a_walk_exists() -> None:
    missing = [
        f"{title}, {number}: no {name} in {path}"
        for title, hops in walks().items()
        for number, path, name in hops
        if name not in _functions(ROOT / path)
    ]
    assert not missing, "\n".join(missing)


@cache
def _functions(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    text = path.read_text(encoding="utf-8")
    return _of_java(text) if path.suffix == ".java" else _of_python(ast.parse(text))


def _of_python(tree: ast.Module | ast.ClassDef, prefix: str = "") -> set[str]:
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found |= _of_python(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(f"{prefix}{node.name}")
    return found


def _of_java(text: str) -> set[str]:
    """Return the methods, each behind the name of its class; by the indentation."""
    found = set()
    classes: dict[int, str] = {}
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip(" "))) // 4
        if opened := re.match(r" *(?:\w+ )*(?:class|record|enum|interface) (\w+)", line):
            classes[depth] = opened[1]
        elif method := re.match(r" +(?:\w+ )*[\w<>\[\].]+ (\w+)\(", line):
            found.add(f"{classes.get(depth - 1)}.{method[1]}")
    return found


def test_a_class_has_a_name_of_its_own() -> None:
    """A name that several have does not say in a search which of them is meant."""
    owners: dict[str, list[str]] = defaultdict(list)
    for package in packages():
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    owners[node.name].append(file.relative_to(ROOT).as_posix())
    assert {name: files for name, files in owners.items() if len(files) > 1} == {}
