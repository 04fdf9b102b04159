"""What a client may do: rules in a file, compiled to quick answers. Pure; no socket, no clock."""
