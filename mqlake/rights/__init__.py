"""Rights of a client: rules in a file, compiled to quick answers. Pure; no socket, no clock."""
