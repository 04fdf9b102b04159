"""HAProxy: its configuration, and its Runtime API."""
