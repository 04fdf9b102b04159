"""Alarms: what wants somebody to look, kept until it is well again."""
