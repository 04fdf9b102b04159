"""The SparkSession of an application, and its JVM."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from streaming.engine.spark_conf import java_options, local_environment, spark_conf, spark_jars
from streaming.jvm.bridge import java_class
from streaming.jvm.process import Jvm, start_jvm
from streaming.settings.spark import StreamingSettings

_FATAL_ERRORS_CLASS: Final = "mqlake.spark.FatalErrors"
ROUTER_POOL: Final = "router"
RULES_POOL: Final = "rules"
STATEFUL_POOL: Final = "stateful"
HISTORY_POOL: Final = "history"
STATE_POOL: Final = "state"
OUTPUTS_POOL: Final = "outputs"
MAINTENANCE_POOL: Final = "maintenance"


def start_spark(
    settings: StreamingSettings,
    name: str,
    folder: Path,
    heap_mb: int,
    *,
    java: tuple[str, ...] = (),
    has_tables: bool = True,
    inherited_fds: tuple[int, ...] = (),
) -> tuple[SparkSession, Jvm]:
    """Start the JVM and the session; the caller stops both.

    Args:
        settings: Settings of the application.
        name: Name of the application.
        folder: Folder of the application, for temporary files.
        heap_mb: Most that the heap becomes, MiB.
        java: Options of the JVM beside those that all have.
        has_tables: Whether it reads or writes tables of Delta.
        inherited_fds: Locks that the JVM holds as long as it lives.

    Raises:
        OperationalError: No Java, no jars, or the JVM did not start.
    """
    jars = spark_jars(settings)
    jvm = start_jvm(
        [*java_options(settings, folder, heap_mb), *java],
        jars.class_path,
        environment=local_environment(settings, folder),
        inherited_fds=inherited_fds,
        archives=jars.archives,
    )
    try:
        jvm.export()
        builder: SparkSession.Builder = SparkSession.builder.appName(f"mqlake {name}")
        builder = builder.master(settings.master)
        for key, value in spark_conf(settings, jars.extra, has_tables=has_tables).items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        java_class(session, _FATAL_ERRORS_CLASS).watch()
        return session, jvm
    except BaseException:
        jvm.kill()
        raise


def use_pool(spark: SparkSession, pool: str) -> None:
    """Let jobs that this thread starts from now on run in a scheduler pool of `pools.xml`."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)


def small_session(spark: SparkSession) -> SparkSession:
    """Return a session of its own for work on small tables: one task each, and no more files."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    # VACUUM lists the one folder of a table in this number of tasks; the default is ten thousand.
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")
    return session


def frame_of_texts(spark: SparkSession, texts: Sequence[str], column: str) -> DataFrame:
    """Return a row for each text.

    As a constant of the plan: `createDataFrame` has processes with Python bring rows into a form
    that Java reads, which stay and take 110 MB (docs/design/operation.md).
    """
    rows = F.from_json(F.lit(json.dumps(list(texts))), "array<string>")
    return spark.range(0, 1, 1, 1).select(F.explode(rows).alias(column))
