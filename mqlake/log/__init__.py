"""The Kafka-compatible log behind a small contract, and a fake that keeps it in memory."""
