"""Alarms: conditions that need attention, kept until they have ended."""
