"""Sources are structured, not squeezed: limits on length, and tests against the ways around them.

A class cut in two, arguments packed into a tuple, literals starred to please the formatter: each is
worse than a longer file.
"""

import ast
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]

MOST_FILES_OF_A_FOLDER: Final = 30
"""Of Python; its folders, which are rooms of their own, do not count."""
MOST_LINES_OF_A_FILE: Final = 600
MOST_LINES_OF_A_FUNCTION: Final = 60
"""Without its docstring."""
MOST_PARAMETERS: Final = 8
"""Without `self`; fields of dataclasses are none."""

LONGER: Final = {"mqlake/log/admin.py": 640, "resilience/double/broker.py": 630}
"""Files that may be longer, and how long."""

DECLARING: Final = frozenset({"command", "delete", "get", "patch", "post", "put"})
"""Decorators of commands and routes: a parameter declares an option, and nobody passes it by hand.

They stand as `@router.get(…)`, `@click.command(…)`, `@rules.command(…)`.
"""

CUT: Final = {
    "TokenParser": "a chain of parsers: tokens, expressions, statements",
    "ExpressionParser": "likewise",
}
"""Bases with one child that nobody makes, and why they are classes of their own."""


def parsed(*packages: str) -> dict[str, ast.Module]:
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for package in packages
        for path in sorted((ROOT / package).rglob("*.py"))
    }


@cache
def sources() -> dict[str, ast.Module]:
    """Return all sources of Python but tests, by their paths."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return parsed(*settings["tool"]["importlinter"]["root_packages"])


def full(paths: Iterable[str]) -> dict[str, int]:
    """Return the folders that have too many files, and how many."""
    found = Counter(str(Path(path).parent) for path in paths)
    return {folder: files for folder, files in found.items() if files > MOST_FILES_OF_A_FOLDER}


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many lines a function has without its decorators and docstring."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        assert docstring.end_lineno is not None
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many parameters a function has that its callers pass."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(one.arg not in {"self", "cls"} for one in named)


def is_declaration(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function is a command or a route."""
    return any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr in DECLARING
        for one in function.decorator_list
    )


def stars(tree: ast.Module) -> Iterator[ast.Starred]:
    """Yield starred literals: `f(*(a, b))`, `[*("x", "y"), "z"]`."""
    for node in ast.walk(tree):
        match node:
            case ast.Starred(value=ast.Tuple() | ast.List() | ast.Set()):
                yield node


def name_of(node: ast.expr) -> str:
    """Return the last name of `module.Class`, `Class` or `Class[Argument]`, else ""."""
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def classes(trees: dict[str, ast.Module]) -> Iterator[tuple[str, ast.ClassDef]]:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield path, node


class Uses(ast.NodeVisitor):
    """Finds names of classes that are made, or handed on to be made.

    Neither annotations nor bases make one, nor does it to name an attribute: `Class.method`.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all(node.body, node.decorator_list)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_all([node.value] if node.value else [])

    def visit_arg(self, node: ast.arg) -> None: ...

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._visit_all(node.body, node.decorator_list)
        self.visit(node.args)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Call(self, node: ast.Call) -> None:
        if name_of(node.func) in {"isinstance", "issubclass"}:
            return
        if isinstance(node.func, ast.Attribute):  # `Class.from_text(…)`, `module.Class(…)`
            self.names |= {name_of(node.func.value), node.func.attr}
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.value, ast.Name):
            self.visit(node.value)
        self.names.add(node.attr)

    def visit_Name(self, node: ast.Name) -> None:
        self.names.add(node.id)

    def _visit_all(self, *parts: Sequence[ast.AST]) -> None:
        for part in parts:
            for one in part:
                self.visit(one)


def made(trees: dict[str, ast.Module]) -> set[str]:
    """Return the names of classes that are made somewhere."""
    uses = Uses()
    for tree in trees.values():
        uses.visit(tree)
    return uses.names


def cut(trees: dict[str, ast.Module]) -> dict[str, str]:
    """Return classes that have one child and are never made, by their names: their places.

    Protocols are made by nobody: whoever has the members is one.
    """
    children: dict[str, set[str]] = defaultdict(set)
    places: dict[str, str] = {}
    for path, node in classes(trees):
        bases = {name_of(one) for one in node.bases}
        if "Protocol" not in bases:
            places[node.name] = f"{path}:{node.lineno}"
        for base in bases - {node.name}:  # of another module
            children[base].add(node.name)
    used = made(trees)
    return {
        name: place
        for name, place in places.items()
        if len(children[name]) == 1 and name not in used
    }


def test_folders_have_few_files() -> None:
    assert not full(sources()), f"expected at most {MOST_FILES_OF_A_FOLDER}: find rooms in it"


def test_files_are_not_too_long() -> None:
    found = {path: len((ROOT / path).read_text("utf-8").splitlines()) for path in sources()}
    too_long = {
        path: lines
        for path, lines in found.items()
        if lines > LONGER.get(path, MOST_LINES_OF_A_FILE)
    }
    assert not too_long, f"expected at most {MOST_LINES_OF_A_FILE} lines"


def test_functions_are_not_too_long() -> None:
    too_long = {
        f"{path}:{one.lineno} {one.name}": length(one)
        for path, tree in sources().items()
        for one in functions(tree)
        if length(one) > MOST_LINES_OF_A_FUNCTION
    }
    assert not too_long, f"expected at most {MOST_LINES_OF_A_FUNCTION} lines"


def test_functions_have_few_parameters() -> None:
    too_many = {
        f"{path}:{one.lineno} {one.name}": parameters(one)
        for path, tree in sources().items()
        for one in functions(tree)
        if parameters(one) > MOST_PARAMETERS and not is_declaration(one)
    }
    assert not too_many, f"expected at most {MOST_PARAMETERS}: a frozen dataclass takes the rest"


def test_no_literal_is_starred() -> None:
    starred = [
        f"{path}:{one.lineno} {ast.unparse(one)}"
        for path, tree in sources().items()
        for one in stars(tree)
    ]
    assert not starred, "expected the elements themselves; a table keeps its lines by `# fmt: off`"


def test_no_class_is_cut_in_two() -> None:
    found = cut(sources())
    assert set(found) == set(CUT), (
        "expected one class, or one that has the other: a base with one child is never made at "
        + ", ".join(place for name, place in found.items() if name not in CUT)
    )


CLASSES: Final = """
class Upper: ...
class Lower(Upper): ...
class Shared: ...
class One(Shared): ...
class Other(Shared): ...
class Made: ...
class Child(Made): ...
class Handed: ...
class Grandchild(Handed): ...
class Asked(Protocol): ...
class Answer(Asked): ...
def f(upper: Upper) -> Upper: return isinstance(upper, Upper) and Upper.method
Made(); partial(Handed, 1)
"""


def test_what_is_squeezed_is_found() -> None:
    """Planted squeezes, so that each test above can fail."""
    assert cut({"x.py": ast.parse(CLASSES)}) == {"Upper": "x.py:2"}
    files = [f"api/{number}.py" for number in range(30)]
    assert full([*files, "api/room/31.py"]) == {}
    assert full([*files, "api/31.py"]) == {"api": 31}
    packed = "f(*(a, b)); x = [*('a', 'b'), *names, *{'c'}]; g(*names, **{'d': 1})"
    assert len(list(stars(ast.parse(packed)))) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(self, a, b, *, c, **rest): ...", (3, 1, False)),
        ('def f(a, /):\n    """Long.\n\n    Longer."""\n    return a', (1, 2, False)),
        ("@router.get('/x')\nasync def f(a): ...", (1, 1, True)),
        ("@cache\ndef f(a): ...", (1, 1, False)),
    ],
)
def test_functions_are_measured(text: str, expected: tuple[int, int, bool]) -> None:
    (one,) = functions(ast.parse(text))
    assert (parameters(one), length(one), is_declaration(one)) == expected
