"""Measurements of one part alone, without a system around it."""
