"""Queries in SQL, and the relations that they can name."""
