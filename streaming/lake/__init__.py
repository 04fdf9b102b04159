"""The lake: Spark that keeps the tables and stateful rules, and gives way to all the rest."""
