"""The query application: Spark of its own, over the same tables, for queries of users."""
