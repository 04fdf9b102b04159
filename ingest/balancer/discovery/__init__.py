"""Which nodes there are: from a list, from DNS, from `mqlake.gateways`."""
