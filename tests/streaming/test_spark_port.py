"""What a new version of Spark, Delta or Hadoop may change is named in one place of each language.

In Python that is `streaming/jvm/bridge.py`: PySpark shows the JVM by private names alone. In Java
it is the package `mqlake.spark`: what is not public of Spark, Delta and Hadoop.
"""

import ast
import re
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


JAVA = ROOT / "streaming" / "java" / "mqlake"
PORT = JAVA / "spark"

FOREIGN = re.compile(r"\b(?:org\.apache\.(?:spark|hadoop)|io\.delta)\.[\w.]*[\w*$]")
PUBLIC = re.compile(
    r"org\.apache\.spark\.(?:"
    r"(?:SparkContext|SparkThrowable|TaskContext)"
    r"|api\.java\..*|sql\.api\.java\..*|sql\.connector\..*|sql\.streaming\..*|sql\.types\..*"
    r"|sql\.[A-Z]\w*|sql\.util\.CaseInsensitiveStringMap"
    # Of the developers' API: what hears of tasks.
    r"|scheduler\.SparkListener\w*|executor\.TaskMetrics|util\.TaskCompletionListener"
    r")"
)
"""What Spark documents and keeps from version to version."""
VALUES = re.compile(
    r"org\.apache\.spark\.(?:"
    r"sql\.catalyst\.InternalRow|sql\.catalyst\.util\.(?:ArrayData|MapData)"
    r"|unsafe\.types\.(?:UTF8String|VariantVal)"
    r")"
)
"""As which the public connector API hands over rows and takes results (the Javadoc of its
`ScalarFunction` and `DataWriter`): to wrap them would be a call more for each value."""
NOT_YET = {
    "rules/CompiledColumns.java",
    "rules/CompiledRule.java",
    "rules/FieldKind.java",
    "rules/Guard.java",
    "rules/Lane.java",
    "rules/LaneCode.java",
    "rules/MessageRow.java",
    "rules/PayloadField.java",
    "rules/RuleCompiler.java",
}
"""These name what is not public and are to go: no new ones."""


def not_public(text: str) -> list[str]:
    """Return what a source in Java names that a new version may change without a word."""
    return [
        name
        for name in FOREIGN.findall(text)
        if not PUBLIC.fullmatch(name) and not VALUES.fullmatch(name)
    ]


def test_java_names_what_is_not_public_in_one_package() -> None:
    found = {
        source.relative_to(JAVA).as_posix(): names
        for source in sorted(JAVA.rglob("*.java"))
        if source.parent != PORT and (names := not_public(source.read_text(encoding="utf-8")))
    }
    new = {source: names for source, names in found.items() if source not in NOT_YET}
    assert not new, "put what names these into the package mqlake.spark"
    assert not NOT_YET - found.keys(), "take them off the list"


@pytest.mark.parametrize(
    "line",
    [
        "import org.apache.spark.sql.catalyst.expressions.Expression;",
        "import org.apache.spark.sql.catalyst.plans.logical.*;",
        "import static org.apache.spark.sql.catalyst.util.DateTimeUtils.toJavaDate;",
        "import org.apache.spark.sql.delta.DeltaLog;",
        "import org.apache.spark.sql.internal.SQLConf$;",
        "import org.apache.spark.types.variant.Variant;",
        "import org.apache.spark.unsafe.Platform;",
        "import org.apache.hadoop.fs.Path;",
        "import io.delta.storage.LogStore;",
        "    org.apache.spark.sql.execution.SparkPlan plan;",
    ],
)
def test_a_name_that_is_not_public_is_found(line: str) -> None:
    assert not_public(line)


def test_public_names_may_stand_anywhere() -> None:
    assert not not_public(
        "import org.apache.spark.sql.Row;\n"
        "import org.apache.spark.sql.types.StructType;\n"
        "import org.apache.spark.sql.connector.write.DataWriter;\n"
        "import org.apache.spark.unsafe.types.UTF8String;\n"
        "import org.apache.kafka.common.TopicPartition;\n"
    )
