"""What a new version of Spark, Delta or Hadoop may change is named in one place of each language.

In Python that is `streaming/jvm/bridge.py`: PySpark shows the JVM by private names alone.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("mqlake", "rules", "ingest", "streaming", "api", "launcher", "bench", "cli")
BRIDGE = ROOT / "streaming" / "jvm" / "bridge.py"

SPARKS_OWN = {"_gateway", "_sc", "_wrapped", "_active_spark_context"}
"""Private names of PySpark; so are all that begin with `_j`, for Java."""


def java_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield what speaks of the JVM by PySpark's private names or by py4j: line and name."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names) if any(one.name.startswith("py4j") for one in names):
                yield node.lineno, "py4j"
            case ast.ImportFrom(module=str(module)) if module.startswith("py4j"):
                yield node.lineno, module
            case ast.Constant(value="py4j" | "org.apache.spark.sql.delta.DeltaLog" as name):
                yield node.lineno, str(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if name in SPARKS_OWN or name.startswith("_j"):
                yield node.lineno, name
            case ast.Attribute(attr="apache" as name):  # as in jvm.org.apache.hadoop.fs.Path
                yield node.lineno, name


def test_python_reaches_the_jvm_by_one_module() -> None:
    sources = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]
    assert BRIDGE in sources
    found = {
        str(path.relative_to(ROOT)): names
        for path in sources
        if path != BRIDGE and (names := list(java_names(path.read_text(encoding="utf-8"))))
    }
    assert not found, "say it in streaming/jvm/bridge.py"


@pytest.mark.parametrize(
    "line",
    [
        "import py4j.protocol",
        "from py4j.protocol import Py4JError",
        "spark.sparkContext._jvm.mqlake.log.Positions",
        "self._spark._jsparkSession",
        "rows._jdf",
        "context._gateway",
        "jvm.org.apache.hadoop.fs.Path(path)",
        "logging.getLogger('py4j')",
    ],
)
def test_a_line_that_speaks_of_the_jvm_is_found(line: str) -> None:
    assert list(java_names(line))


def test_our_own_private_names_are_not_taken_for_those_of_spark() -> None:
    assert not list(java_names("self._jobs\nself._gateway\ncls._join"))
