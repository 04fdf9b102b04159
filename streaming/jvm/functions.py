"""Make functions written in Java known to Spark."""

from typing import Any

from pyspark.sql import SparkSession


def java_map(spark: SparkSession, entries: dict[str, str]) -> Any:
    """Return a java.util.HashMap."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    converted = jvm.java.util.HashMap()
    for key, value in entries.items():
        converted.put(key, value)
    return converted


def register(spark: SparkSession, name: str, function: Any, arity: int, return_type: str) -> None:
    """Make a function known to this session.

    Declared as not deterministic: the optimizer would otherwise call it twice for each record, once
    to filter away records without a result.

    Args:
        spark: Its JVM has our classes on the class path (`streaming.spark`).
        name: In Spark SQL.
        function: The Java object, an `org.apache.spark.sql.api.java.UDF<arity>`.
        arity: How many arguments it takes.
        return_type: As DDL.
    """
    jvm = spark.sparkContext._jvm
    gateway = spark.sparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    returns = jvm.org.apache.spark.sql.types.DataType.fromDDL(return_type)
    # By reflection, because by name py4j takes the overload for a Scala closure.
    java_class = jvm.java.lang.Class
    types = gateway.new_array(java_class, 2)
    types[0] = java_class.forName(f"org.apache.spark.sql.api.java.UDF{arity}")
    types[1] = java_class.forName("org.apache.spark.sql.types.DataType")
    arguments = gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0] = function
    arguments[1] = returns
    functions = java_class.forName("org.apache.spark.sql.functions")
    typed = functions.getMethod("udf", types).invoke(None, arguments)
    spark._jsparkSession.udf().register(name, typed.asNondeterministic())
