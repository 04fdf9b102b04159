"""Callers: their accounts and keys, how they log in and out."""
