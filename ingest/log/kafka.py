"""The log in a Kafka-compatible cluster: both halves of the contract."""

from ingest.log.kafka_reader import KafkaLogReader
from ingest.log.kafka_writer import KafkaLogWriter

__all__ = ["KafkaLogReader", "KafkaLogWriter"]
