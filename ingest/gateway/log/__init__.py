"""The gateway's side of the log: offsets, partitions, its lease, the writer of keyed records."""
