"""The log in a Kafka-compatible cluster: all parts of the contract."""

from mqlake.log.kafka_ranges import KafkaRangeReader
from mqlake.log.kafka_reader import KafkaLogReader
from mqlake.log.kafka_writer import KafkaLogWriter

__all__ = ["KafkaLogReader", "KafkaLogWriter", "KafkaRangeReader"]
