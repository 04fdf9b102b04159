"""Which gateways get a message: inbound records to delivery records, by the route function.

inbound(key, value, headers, partition, offset, timestamp)
    -> deliveries(topic, partition, key, value, headers)
"""

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark reader knows

from mqlake.records import (
    DELIVERY_PREFIX,
    HEADER_CLIENT_ID,
    HEADER_MQTT,
    HEADER_SOURCE,
    INBOUND,
    ROUTES,
    ROUTES_IN_FORCE,
)
from streaming.jvm.functions import java_map, register
from streaming.sources import header

_FUNCTION: Final = "mqlake_route"
_FUNCTION_CLASS: Final = "mqlake.routing.RouteFunction"
_RETURN_TYPE: Final = "array<struct<topic:string,source:binary>>"


def register_route_function(spark: SparkSession, consumer_config: dict[str, str]) -> None:
    """Make the route function known to this session.

    Args:
        spark: Its JVM has the routing classes on the class path (`streaming.spark`).
        consumer_config: How a Kafka client in the executors reaches the log.
    """
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    config = java_map(spark, consumer_config)
    function = getattr(jvm, _FUNCTION_CLASS)(
        config, ROUTES, DELIVERY_PREFIX, INBOUND, ROUTES_IN_FORCE
    )
    register(spark, _FUNCTION, function, 6, _RETURN_TYPE)


def deliveries(inbound: DataFrame) -> DataFrame:
    """Route each record to the delivery topics of its gateways, in order; barriers too.

    Each delivery is the record with a `source` header more (see `mqlake.records.Source`).
    """
    routed = inbound.select(
        F.explode(
            F.call_function(
                _FUNCTION,
                F.col("key"),
                header(HEADER_MQTT),
                header(HEADER_CLIENT_ID),
                F.col("partition"),
                F.col("offset"),
                F.unix_millis("timestamp"),
            )
        ).alias("delivery"),
        "key",
        "value",
        "headers",
    )
    return routed.select(
        F.col("delivery.topic").alias("topic"),
        F.lit(0).alias("partition"),
        "key",
        "value",
        F.concat(F.coalesce("headers", F.array()), F.array(_source_header())).alias("headers"),
    )


def _source_header() -> Column:
    return F.struct(F.lit(HEADER_SOURCE).alias("key"), F.col("delivery.source").alias("value"))
