"""What became of one message: what the log and the tables recorded, and what follows from it."""
