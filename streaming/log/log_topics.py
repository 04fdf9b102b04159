"""Facts of the log topics that the application needs before its queries start."""

from typing import Final

from pyspark.sql import SparkSession

from mqlake.errors import LogError
from streaming.jvm.bridge import JavaError, java_class, reason_of

_TIMEOUT_MS: Final = 5000


def partition_counts(
    spark: SparkSession, client_config: dict[str, str], topics: tuple[str, ...]
) -> dict[str, int]:
    """Return the number of partitions of each log topic that exists.

    Raises:
        LogError: The log does not answer.
    """
    properties = java_class(spark, "java.util.Properties")()
    for key, value in client_config.items():
        properties.setProperty(key, value)
    for key in ("request.timeout.ms", "default.api.timeout.ms"):
        properties.setProperty(key, str(_TIMEOUT_MS))
    admin = java_class(spark, "org.apache.kafka.clients.admin.AdminClient").create(properties)
    counts: dict[str, int] = {}
    try:
        names = admin.listTopics().names().get()
        for topic in topics:
            if names.contains(topic):
                described = admin.describeTopics([topic]).allTopicNames().get()
                counts[topic] = described.get(topic).partitions().size()
    except JavaError as exc:
        raise LogError(f"the log does not answer: {reason_of(exc)}", definite=True) from exc
    finally:
        admin.close(java_class(spark, "java.time.Duration").ofSeconds(1))
    return counts
