"""Retained messages: their publishers, shards, quota, and questions to them."""
