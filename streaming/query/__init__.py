"""The query application: Spark of its own, over the same tables, for whoever has a question."""
