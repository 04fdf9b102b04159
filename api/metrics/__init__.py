"""Counters of rules and of tenants, as processes tell them by `mqlake.metrics`."""
