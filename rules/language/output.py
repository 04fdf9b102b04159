"""The output row: names with dots become objects in objects, in the order selected."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from rules.language.values import Value, as_output
from rules.sql.quoting import quoted

Tree: TypeAlias = "dict[str, Tree | Value]"


def put(tree: Tree, path: Sequence[str], value: Value) -> None:
    """Place a value; a value there or in its way is replaced."""
    *parents, name = path
    for parent in parents:
        inner = tree.get(parent)
        if not isinstance(inner, dict):
            inner = {}
            tree[parent] = inner
        tree = inner
    tree[name] = value


def structure(tree: Tree) -> str:
    """Return the row as a struct in Spark SQL."""
    fields = []
    for name, value in tree.items():
        made = structure(value) if isinstance(value, dict) else as_output(value)
        fields.append(f"{quoted(name)}, {made}")
    return f"named_struct({', '.join(fields)})"


def row(tree: Tree) -> str:
    """Return the row as a JSON object in Spark SQL; a missing value is null in it."""
    return f"to_json({structure(tree)}, map('ignoreNullFields', 'false'))"


def names(tree: Tree, prefix: str = "") -> Iterator[str]:
    """Yield the names of the row, with dots."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from names(value, f"{prefix}{name}.")
        else:
            yield prefix + name
