"""One file for each streaming query: read, transform, write, start."""
