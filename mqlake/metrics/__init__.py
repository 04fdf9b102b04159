"""Metrics of processes for Prometheus: their names, and the server of a process."""
