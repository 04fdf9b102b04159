"""What the server knows of a client between packets: pure state machines, no socket, no clock."""
