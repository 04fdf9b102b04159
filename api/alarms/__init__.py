"""Alarms: conditions that somebody has to look at, kept until they have ended."""
