"""The process around all rooms: it makes the parts, runs them, reports on them and ends them."""
