"""The jars of the class path."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from mqlake.errors import OperationalError


def _pyspark_jars() -> Path:
    """Find them without loading pyspark, which takes a second and 60 MB."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "jars"


PYSPARK_JARS: Final = _pyspark_jars()
_ARTIFACT: Final = re.compile(r"(?P<artifact>.+)-\d+(\.\d+)*[^-]*(-[A-Za-z]\w*)?\.jar")


def artifact(jar: Path) -> str:
    """Return a jar's name without its version: `delta-spark_4.2_2.13`."""
    match = _ARTIFACT.fullmatch(jar.name)
    return match["artifact"] if match else jar.stem


def compiler_jar(jars_dir: Path) -> Path:
    """Return the Java compiler; it is on no class path of ours.

    Raises:
        OperationalError: It is not there.
    """
    found = sorted((jars_dir / "build").glob("ecj-*.jar"))
    if not found:
        raise OperationalError(
            f"{jars_dir / 'build'} holds no Java compiler; start once with: bin/mqlake up"
        )
    return found[-1]


def extra_jars(jars_dir: Path) -> list[Path]:
    """Return the jars that pyspark lacks, sorted by name.

    A resolver brings whole dependency trees; an artifact that pyspark has in its own version must
    not come twice.

    Raises:
        OperationalError: The Kafka connector or Delta is not there.
    """
    present = {artifact(jar) for jar in PYSPARK_JARS.glob("*.jar")}
    extra = [jar for jar in (jars_dir / "spark").glob("*.jar") if artifact(jar) not in present]
    names = {artifact(jar) for jar in extra}
    for needed in ("delta-spark", "spark-sql-kafka", "kafka-clients"):
        if not any(name.startswith(needed) for name in names):
            raise OperationalError(
                f"{jars_dir / 'spark'} holds no {needed} jar; start once with: bin/mqlake up"
            )
    return sorted(extra)
