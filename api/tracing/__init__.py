"""Traces of single messages, from records of the log and the tables."""
