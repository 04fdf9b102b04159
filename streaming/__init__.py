"""Spark: the router, the lake, the query application, and what they have in common."""
