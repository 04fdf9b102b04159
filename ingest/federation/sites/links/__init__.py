"""Links to neighbours: connections, what is said on them, their events."""
