"""Schemas of payloads, as the API takes and shows them."""
