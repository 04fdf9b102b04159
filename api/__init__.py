"""The REST API: reads what other processes write down, asks gateways through the log."""
