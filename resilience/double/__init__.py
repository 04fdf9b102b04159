"""A broker in memory that can be made to fail on purpose: the proof of the checkers."""
