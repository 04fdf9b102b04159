"""Parts that every room of a gateway uses: clients, counters, events, drops, denials, tasks."""
