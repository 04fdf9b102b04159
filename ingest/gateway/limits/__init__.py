"""Rates, stocks, bans and rights that hold for clients, users, listeners and tenants."""
