"""Shards of sessions that this gateway owns or follows."""
