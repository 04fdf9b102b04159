"""The MQTT edge: protocol, sessions, the gateway process and the log it writes to."""
