"""The log in a Kafka-compatible cluster: all parts of the contract."""

from ingest.log.kafka_ranges import KafkaRangeReader
from ingest.log.kafka_reader import KafkaLogReader
from ingest.log.kafka_writer import KafkaLogWriter

__all__ = ["KafkaLogReader", "KafkaLogWriter", "KafkaRangeReader"]
