"""Clients, and whom gateways let in: tenants, bans, rights."""
