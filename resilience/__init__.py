"""A fault test for MQTT brokers: drivers write histories, checkers judge them.

It stands by itself: neither Spark nor Kafka nor the rest of mqlake is needed. Only the raw driver
borrows mqlake's sans-IO codec (`ingest.protocol`).
"""
