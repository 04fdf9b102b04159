"""Reads missed messages from the log, or from the tables when the log has deleted them."""
