"""Messages of the past, published again or given to one client."""
