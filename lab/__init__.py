"""Experiments of papers, repeated: not installed, and in no gate."""
