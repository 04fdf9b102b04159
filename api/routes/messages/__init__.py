"""Messages: publish, follow, look at the retained, delete or replay those of the past."""
