"""Evaluation of rules on records, by the rule functions.

records(key, value, headers, topic, partition, offset, timestamp) of `mqlake.inbound` and
`mqlake.events` -> records(topic, partition, key, value, headers) for `mqlake.outputs` and
`mqlake.dead_letters`
"""

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark reader knows

from mqlake.records.messages import RULES
from streaming.jvm.bridge import java_class, java_map, register

_FILTER: Final = "mqlake_has_rules"
_FILTER_CLASS: Final = "mqlake.rules.RuleFilter"
_FUNCTION: Final = "mqlake_rules"
_FUNCTION_CLASS: Final = "mqlake.rules.RuleFunction"
_FOLLOWER_CLASS: Final = "mqlake.rules.RuleFollower"
_METRICS_CLASS: Final = "mqlake.rules.RuleMetrics"
_RETURN_TYPE: Final = (
    "array<struct<topic:string,partition:int,key:binary,value:binary,"
    "headers:array<struct<key:string,value:binary>>>>"
)


def register_rule_functions(
    spark: SparkSession, client_config: dict[str, str], begun: int, output_partitions: int
) -> None:
    """Make the rule functions known to this session.

    Args:
        spark: Its JVM has our classes on the class path (`streaming.engine.spark`).
        client_config: How a Kafka client in the executors reaches the log.
        begun: Number of a change of the rules; nothing is evaluated before it is in force.
        output_partitions: Partitions of `mqlake.outputs`.
    """
    config = java_map(spark, client_config)
    filter_ = java_class(spark, _FILTER_CLASS)(config, begun)
    register(spark, _FILTER, filter_, 5, "boolean")
    function = java_class(spark, _FUNCTION_CLASS)(config, output_partitions)
    register(spark, _FUNCTION, function, 8, _RETURN_TYPE)


def follow_rules(spark: SparkSession, client_config: dict[str, str]) -> None:
    """Have the rules read and compiled already, by the driver's JVM.

    Where tasks run in the same one, as with a local master, the query then finds them ready.
    """
    java_class(spark, _FOLLOWER_CLASS).of(java_map(spark, client_config), RULES)


def count_nothing(spark: SparkSession) -> None:
    """Leave counters of rules to another JVM, which evaluates the same, until `count_from_now`.

    Of the driver's JVM: executors elsewhere count all.
    """
    java_class(spark, _METRICS_CLASS).standBeside()


def count_from_now(spark: SparkSession) -> None:
    """Count evaluations from now on."""
    java_class(spark, _METRICS_CLASS).takeOver()


def rule_outputs(records: DataFrame) -> DataFrame:
    """Evaluate the rules on each record, in order; barriers of changes wait there."""
    concerned = records.where(
        F.call_function(_FILTER, *map(F.col, ("topic", "key", "value", "partition", "offset")))
    )
    made = concerned.select(
        F.explode(
            F.call_function(
                _FUNCTION,
                F.col("topic"),
                F.col("partition"),
                F.col("offset"),
                F.unix_millis("timestamp"),
                F.col("key"),
                F.col("value"),
                F.col("headers.key"),
                F.col("headers.value"),
            )
        ).alias("made")
    )
    return made.select("made.*")
