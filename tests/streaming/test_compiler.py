"""Our Java is compiled by a compiler that runs on any Java, once for each state of its sources."""

import re
import zipfile
from pathlib import Path

import pytest

from launcher.paths import RUNTIME
from mqlake.errors import OperationalError
from streaming.jvm import compiler
from streaming.jvm.compiler import RELEASE, SOURCES, build_jar
from streaming.jvm.jars import PYSPARK_JARS
from streaming.jvm.other_spark import breaks

pytestmark = pytest.mark.spark

JARS = RUNTIME / "jars"
FIRST_CLASS_VERSION = 44
"""Of a class for Java 1.0; each release counts one on."""


PACKAGES = ("spark", "log", "routing", "decoding", "rules", "stateful")
"""Each uses only those before it."""


def test_packages_use_only_those_below_them() -> None:
    sources = sorted(SOURCES.rglob("*.java"))
    assert {source.parent for source in sources} == {SOURCES / "mqlake" / p for p in PACKAGES}
    for source in sources:
        text = source.read_text(encoding="utf-8")
        assert f"package mqlake.{source.parent.name};" in text
        below = PACKAGES[: PACKAGES.index(source.parent.name)]
        assert set(re.findall(r"^import mqlake\.(\w+)\.", text, re.MULTILINE)) <= set(below), source


def write_class(folder: Path, body: str) -> list[Path]:
    source = folder / "Greeting.java"
    source.write_text(f"package tried;\n\nfinal class Greeting {{\n{body}\n}}\n")
    return [source]


def test_classes_are_for_the_oldest_java_and_made_once(tmp_path: Path) -> None:
    sources = write_class(tmp_path, "    record Word(String text) {}")
    jar = build_jar("tried", sources, tmp_path, JARS)
    with zipfile.ZipFile(jar) as archive:
        assert archive.namelist() == ["tried/Greeting$Word.class", "tried/Greeting.class"]
        assert archive.read("tried/Greeting.class")[7] == FIRST_CLASS_VERSION + int(RELEASE)
    made = jar.stat().st_mtime_ns
    assert build_jar("tried", sources, tmp_path, JARS) == jar
    assert jar.stat().st_mtime_ns == made
    assert build_jar("tried", write_class(tmp_path, ""), tmp_path, JARS) != jar


def test_a_source_that_does_not_compile_is_refused_with_its_line(tmp_path: Path) -> None:
    sources = write_class(tmp_path, "    int number = true;")
    with pytest.raises(OperationalError, match=r"(?s)Greeting.java \(at line 4\).*boolean to int"):
        build_jar("tried", sources, tmp_path, JARS)
    assert not list(tmp_path.glob("*.jar"))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("    java.util.List listed;", "List is a raw type"),
        ('    String text = (String) "a";', "Unnecessary cast"),
        ("    public String toString() { return null; }", "should be tagged with @Override"),
        ("    private int unused() { return 1; }", "is never used locally"),
    ],
)
def test_a_source_is_held_to_the_language_it_is_written_in(
    tmp_path: Path, body: str, error: str
) -> None:
    with pytest.raises(OperationalError, match=error):
        build_jar("tried", write_class(tmp_path, body), tmp_path, JARS)


def test_a_missing_compiler_is_told(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match="holds no Java compiler; start once with"):
        build_jar("tried", write_class(tmp_path, ""), tmp_path, tmp_path)


def test_a_runtime_without_older_interfaces_makes_the_same_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "runtime" / "bin" / "java"
    assert compiler.release_options(str(java)) == ("-source", RELEASE, "-target", RELEASE)
    monkeypatch.setattr(
        compiler, "release_options", lambda java: ("-source", RELEASE, "-target", RELEASE)
    )
    jar = build_jar("tried", write_class(tmp_path, ""), tmp_path, JARS)
    with zipfile.ZipFile(jar) as archive:
        assert archive.read("tried/Greeting.class")[7] == FIRST_CLASS_VERSION + int(RELEASE)


def test_what_another_spark_lacks_is_told_by_class(tmp_path: Path) -> None:
    body = "    org.apache.spark.sql.Row row;\n    org.apache.spark.sql.NotYet later;"
    sources = write_class(tmp_path, body)
    found = breaks(sources, JARS, [PYSPARK_JARS])
    assert found == {sources[0]: ["5: org.apache.spark.sql.NotYet cannot be resolved to a type"]}
    (tmp_path / "without").mkdir()
    without = breaks(sources, JARS, [tmp_path / "without"])
    assert [problem.partition(":")[0] for problem in without[sources[0]]] == ["4", "5"]


def test_nothing_is_told_of_what_another_spark_has(tmp_path: Path) -> None:
    sources = write_class(tmp_path, "    org.apache.spark.sql.Row row;")
    assert breaks(sources, JARS, [PYSPARK_JARS]) == {}
