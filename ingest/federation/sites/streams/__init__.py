"""Streams of messages from site to site: what is sent, what has come, what is missing."""
