"""Stores of a gateway on its own disk: copies of the log's state, made again at each start."""
