"""Finds nodes: from a list, from DNS, from `mqlake.gateways`."""
