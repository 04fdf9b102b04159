"""The REST API: reads the records and files of other processes, asks gateways through the log."""
