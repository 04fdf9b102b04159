"""What was missed is read from the log, or from the tables when the log has deleted it."""
