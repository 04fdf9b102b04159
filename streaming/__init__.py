"""Spark: the router, the lake, the query application, and their common parts."""
