"""How much work a gateway has: latency, memory, room in the log, overload."""
