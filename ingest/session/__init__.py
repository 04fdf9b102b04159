"""The server's state of a client between packets: pure state machines, no socket, no clock."""
