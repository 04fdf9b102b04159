"""Proof that killing processes costs time and nothing else: real ones, every message looked at."""
