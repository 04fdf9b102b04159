"""Configuration of every JVM with Spark: its options, its jars, its logging.

Nothing here imports pyspark: a caller that talks to such a JVM otherwise does not load it.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mqlake.logs import KEPT_LOG_FILES, MAX_LOG_BYTES
from streaming.jvm.class_archive import can_write
from streaming.jvm.compiler import build_routing_jar
from streaming.jvm.jars import PYSPARK_JARS, extra_jars
from streaming.jvm.jit import COMPILER_OPTIONS
from streaming.jvm.vocabulary import EXPENDABLE_OPTION
from streaming.settings.spark import SparkSettings

POOLS_FILE: Final = Path(__file__).parent / "pools.xml"
# The last one reads statements first.
_EXTENSIONS: Final = (
    "mqlake.log.HeaderFunction,mqlake.decoding.DecodingFunctions,mqlake.spark.Confinement"
)

# One machine, small batches: Spark's means for clusters (many partitions, statistics, replanning)
# cost more than they bring. Real-time mode refuses adaptive execution.
_DEFAULTS: Final[dict[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": str(POOLS_FILE),
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    # Real-time batches of whole seconds; the default refuses less than five.
    "spark.sql.streaming.realTimeMode.minBatchDuration": "1s",
    # It knows the sinks that come with Spark; ours has no state and tells when the log has a batch.
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    # A stack that is too deep ends a task, not the JVM; without memory it ends by itself.
    "spark.executor.killOnFatalError.depth": "0",
    "spark.sql.streaming.minBatchesToRetain": "20",
    # A batch that does not fit into memory goes to a file in parts of 4 MB. Java's serializer holds
    # each until it begins again, after 100 of them by default.
    "spark.serializer.objectStreamReset": "1",
    # Each rule has generated code, in every thread that evaluates it: compiled once.
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.sql.ui.retainedExecutions": "5",
    "spark.ui.retainedJobs": "5",
    "spark.ui.retainedStages": "5",
    "spark.ui.retainedTasks": "50",
    # A query that is stopped does not wait for a batch: the rest of it comes again.
    "spark.sql.streaming.stopTimeout": "2000",
    "spark.sql.extensions": _EXTENSIONS,
}
_TABLES: Final[dict[str, str]] = {
    "spark.sql.extensions": f"io.delta.sql.DeltaSparkSessionExtension,{_EXTENSIONS}",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    # A row group is written and read at once, 128 MiB by default: in a merge two of them meet.
    "spark.hadoop.parquet.block.size": str(16 << 20),
    # Rows read at once, all in memory: payloads are large.
    "spark.sql.parquet.columnarReaderBatchSize": "1024",
}
# Without an address Spark looks up the machine's name and shows an outside address for nothing.
_LOCAL_ENVIRONMENT: Final = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_LOCAL_HOSTNAME": "localhost",
    # For local-cluster, to start its executors.
    "SPARK_HOME": str(PYSPARK_JARS.parent),
    "SPARK_SCALA_VERSION": "2.13",
}
_LOCAL_DEFAULTS: Final[dict[str, str]] = {
    # The default renames through an interface that runs ten processes for each commit, and Delta's
    # own for one machine is safe with one writing process only.
    "spark.delta.logStore.file.impl": "mqlake.spark.CommitFiles",
    # Checkpoints through the plain file system, else two processes run for each file renamed.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    # Hadoop sets modes of its own, not by the umask of the process.
    "spark.hadoop.fs.permissions.umask-mode": "077",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

# Small footprint first, then short pauses.
JAVA_OPTIONS: Final = (
    *COMPILER_OPTIONS,
    "-XX:+UseSerialGC",
    "-XX:MaxMetaspaceSize=320m",
    "-Xss1m",
    # Milliseconds. What a large work (the archive of classes, a merge) has freed goes back to the
    # system; Java from 17.0.9 on.
    "-XX:TrimNativeHeapInterval=30000",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
)


@dataclass(frozen=True, slots=True)
class SparkJars:
    """The jars of a JVM with Spark.

    Attributes:
        extra: Beside pyspark's.
        archives: Folder of class archives, the same for all data directories; None where no file
            can be written beside the jars.
    """

    extra: list[Path]
    archives: Path | None

    @property
    def class_path(self) -> list[str]:
        return [str(PYSPARK_JARS / "*"), *map(str, self.extra)]


def spark_jars(settings: SparkSettings) -> SparkJars:
    """Return the jars; our own classes are compiled if they are not yet.

    Raises:
        OperationalError: They are not there, or do not compile.
    """
    jars_dir = settings.jars_dir.absolute()
    jars = extra_jars(jars_dir)
    # Beside the other jars if possible: for every data directory the same class path.
    shared = jars_dir / "classes"
    is_shared = can_write(shared)
    folder = shared if is_shared else settings.data_dir.absolute() / "jvm"
    jars.append(build_routing_jar(folder, jars_dir))
    return SparkJars(jars, shared if is_shared else None)


def java_options(settings: SparkSettings, folder: Path, heap_mb: int) -> list[str]:
    """Return the options of a JVM with Spark.

    Args:
        settings: Settings, for the log file.
        folder: Folder of the application: for temporary files, which are emptied, and its logging
            configuration.
        heap_mb: Most that its heap becomes, MiB.
    """
    return [
        *JAVA_OPTIONS,
        f"-Xmx{heap_mb}m",
        f"-Dlog4j2.configurationFile={_write_logging(settings, folder)}",
        f"-Djava.io.tmpdir={_emptied(folder / 'tmp')}",
        f"-Dderby.system.home={folder}",
    ]


def local_environment(settings: SparkSettings, folder: Path) -> dict[str, str]:
    """Return the environment variables of a JVM with Spark beside our own."""
    if not settings.master.startswith("local"):
        return {}
    return {**_LOCAL_ENVIRONMENT, "SPARK_WORKER_DIR": str(folder / "work")}


def spark_conf(
    settings: SparkSettings, jars: list[Path], *, has_tables: bool = True
) -> dict[str, str]:
    """Return the whole Spark configuration; the user's own keys win.

    Args:
        settings: Settings of the application.
        jars: Beside pyspark's.
        has_tables: Whether it reads or writes tables of Delta.
    """
    data_dir = settings.data_dir.absolute()
    conf = _DEFAULTS | _TABLES if has_tables else dict(_DEFAULTS)
    conf["spark.sql.warehouse.dir"] = str(data_dir / "tables")
    if settings.master.startswith("local"):
        conf |= _LOCAL_DEFAULTS
    if settings.master.startswith("local["):
        # No other process uses the ports that the driver opens: its executor is itself. The secret
        # is made up by Spark.
        conf["spark.authenticate"] = "true"
        conf["spark.hadoop.fs.file.impl"] = "mqlake.spark.LocalFiles"
        # Of those of the router nothing is read by a later start.
        expendable = (data_dir / "api", data_dir / "router")
        conf[f"spark.hadoop.{EXPENDABLE_OPTION}"] = ",".join(map(str, expendable))
    else:
        # The driver has them on its class path; executors elsewhere are sent them.
        conf["spark.jars"] = ",".join(str(jar) for jar in jars)
    return conf | settings.spark


def _emptied(path: Path) -> Path:
    """Return a folder for temporary files, without those of a run that was killed."""
    shutil.rmtree(path, ignore_errors=True)
    return _directory(path)


# Their messages are in the query's own exception too, which is logged and shown; and a query that
# is merely stopped makes them report an error for each of its tasks.
_SILENCED: Final = (
    "org.apache.hadoop.util.NativeCodeLoader",
    # Says of each merge how Delta keeps its source.
    "org.apache.spark.rdd.MapPartitionsRDD",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler",
    # Reports to the log errors that it sends to the client as well.
    "org.apache.spark.sql.connect.utils.ErrorUtils",
    "org.apache.spark.sql.execution.datasources.v2",
    # Report work that a query that is cancelled leaves undone.
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.hadoop.mapreduce.lib.output.FileOutputCommitter",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    # Warns of each batch that takes longer than its interval; ours rest.
    "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor",
    "org.apache.spark.sql.catalyst.util.SparkStringUtils",
    "org.apache.spark.sql.catalyst.analysis.SimpleFunctionRegistry",
    "org.apache.spark.util.SparkStringUtils",
    "org.apache.spark.util.Utils",
    # Warn of each request while a broker or a log topic is away; the waiting side says so.
    "org.apache.kafka.clients.NetworkClient",
    "org.apache.kafka.clients.producer.internals.Sender",
)


def _directory(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _write_logging(settings: SparkSettings, directory: Path) -> Path:
    """Write the JVM's logging configuration: our lines at the set level, Spark's from WARN."""
    lines = [
        "status = warn",
        "rootLogger.level = warn",
        "rootLogger.appenderRef.out.ref = out",
        "logger.mqlake.name = mqlake",
        f"logger.mqlake.level = {settings.log_level.lower()}",
        *(
            line
            for number, name in enumerate(_SILENCED)
            for line in (f"logger.s{number}.name = {name}", f"logger.s{number}.level = off")
        ),
        "appender.out.name = out",
        "appender.out.layout.type = PatternLayout",
        "appender.out.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1} %m%n%throwable{8}",
    ]
    if settings.log_file is None:
        lines += ["appender.out.type = Console", "appender.out.target = SYSTEM_ERR"]
    else:
        file = settings.log_file.absolute().with_name(f"{settings.log_file.stem}-jvm.log")
        lines += [
            "appender.out.type = RollingFile",
            f"appender.out.fileName = {file}",
            f"appender.out.filePattern = {file}.%i",
            "appender.out.policies.type = Policies",
            "appender.out.policies.size.type = SizeBasedTriggeringPolicy",
            f"appender.out.policies.size.size = {MAX_LOG_BYTES}",
            "appender.out.strategy.type = DefaultRolloverStrategy",
            f"appender.out.strategy.max = {KEPT_LOG_FILES}",
        ]
    path = _directory(directory) / "log4j2.properties"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
