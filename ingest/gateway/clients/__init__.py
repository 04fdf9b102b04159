"""Connections of clients: CONNECT, packets received, SUBSCRIBE, closing."""
