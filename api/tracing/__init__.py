"""What became of one message: what the log and the tables have recorded."""
