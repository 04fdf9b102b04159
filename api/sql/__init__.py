"""Queries of users over the history: checked, confined to a tenant, run by Spark, streamed out."""
