"""Measurements of a whole system."""
