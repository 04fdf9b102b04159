"""From PUBLISH to the log, and which filters are routed to this gateway."""
