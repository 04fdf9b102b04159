"""The relations that queries see, their definitions for Spark, and their audits."""
