"""All that Python asks of the JVM: the one module that names py4j and private parts of PySpark.

PySpark promises neither, so another version of it concerns this module alone; a test holds the
others to it. Java objects are `Any`: py4j finds their methods when they are called.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

JvmError: Final = Py4JError
"""A call of Java failed, or the JVM is gone."""
JavaError: Final = Py4JJavaError
"""Java has thrown something that PySpark has no error of its own for; a `JvmError`."""
CALL_LOGGER: Final = logging.getLogger("py4j")
"""Reports calls that fail, beside raising them."""


def reason_of(error: Any) -> str:
    """Return the message of what Java has thrown, from a `JavaError`."""
    reason: str = error.java_exception.getMessage()
    return reason


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class of Java by its full name: call it for an object, or its static methods."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return getattr(jvm, name)


def java_map(spark: SparkSession, entries: Mapping[str, str]) -> Any:
    """Return a java.util.HashMap."""
    converted = java_class(spark, "java.util.HashMap")()
    for key, value in entries.items():
        converted.put(key, value)
    return converted


def java_strings(spark: SparkSession, texts: Iterable[str]) -> Any:
    """Return a String[]."""
    listed = list(texts)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    array = gateway.new_array(java_class(spark, "java.lang.String"), len(listed))
    for at, text in enumerate(listed):
        array[at] = text
    return array


def java_session(spark: SparkSession) -> Any:
    """Return Java's SparkSession."""
    return spark._jsparkSession


def java_context(spark: SparkSession) -> Any:
    """Return Scala's SparkContext."""
    context: Any = spark.sparkContext
    return context._jsc.sc()


def java_rows(rows: DataFrame) -> Any:
    """Return Java's Dataset of a DataFrame."""
    return rows._jdf


def python_rows(spark: SparkSession, rows: Any) -> DataFrame:
    """Return the DataFrame of Java's Dataset."""
    return DataFrame(rows, spark)


def ddl_of(rows: DataFrame) -> str:
    """Return the columns of a DataFrame as DDL; PySpark can only read it."""
    ddl: str = rows._jdf.schema().toDDL()
    return ddl


def analyzed_plan(rows: DataFrame) -> Any:
    """Return the logical plan of a DataFrame, as Catalyst has analysed it."""
    return rows._jdf.queryExecution().analyzed()


def for_each_batch(writer: DataStreamWriter, function: Any) -> DataStreamWriter:
    """Give batches to a Java object, a `VoidFunction2`; PySpark's own takes functions of Python."""
    writer._jwrite = writer._jwrite.foreachBatch(function)
    return writer


def last_progress(query: StreamingQuery) -> str | None:
    """Return a query's last progress as JSON, in one call; PySpark's own takes a hundred.

    Raises:
        JvmError: It is just being stopped.
        PySparkException: So.
    """
    found = query._jsq.lastProgress()
    progress: str | None = None if found is None else found.json()
    return progress


def delta_log(spark: SparkSession) -> Any:
    """Return Delta's class of the logs of tables, which remembers those that it has read."""
    return java_class(spark, "org.apache.spark.sql.delta.DeltaLog")


def forget_delta_table(spark: SparkSession, path: Path) -> None:
    """Make Delta forget a table: another one may come to be at its place."""
    place = java_class(spark, "org.apache.hadoop.fs.Path")(str(path))
    delta_log(spark).invalidateCache(spark._jsparkSession, place)


def register(spark: SparkSession, name: str, function: Any, arity: int, return_type: str) -> None:
    """Make a function known to this session.

    Declared as not deterministic: the optimizer would otherwise call it twice for each record, once
    to filter away records without a result.

    Args:
        spark: Its JVM has our classes on the class path (`streaming.engine.spark`).
        name: In Spark SQL.
        function: The Java object, an `org.apache.spark.sql.api.java.UDF<arity>`.
        arity: How many arguments it takes.
        return_type: As DDL.
    """
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    # By reflection, because by name py4j takes the overload for a Scala closure.
    class_ = java_class(spark, "java.lang.Class")
    types = gateway.new_array(class_, 2)
    types[0] = class_.forName(f"org.apache.spark.sql.api.java.UDF{arity}")
    types[1] = class_.forName("org.apache.spark.sql.types.DataType")
    arguments = gateway.new_array(java_class(spark, "java.lang.Object"), 2)
    arguments[0] = function
    arguments[1] = java_class(spark, "org.apache.spark.sql.types.DataType").fromDDL(return_type)
    functions = class_.forName("org.apache.spark.sql.functions")
    typed = functions.getMethod("udf", types).invoke(None, arguments)
    spark._jsparkSession.udf().register(name, typed.asNondeterministic())
