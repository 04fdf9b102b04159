"""Measurements of gateways with a log, without Spark."""
