"""Small questions about one table, answered from its files without Spark."""
