"""The other gateways: who lives, and what they say about themselves."""
