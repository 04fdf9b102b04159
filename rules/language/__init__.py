"""The rule language: from a user's SQL to one Spark SQL expression over a message's row."""
