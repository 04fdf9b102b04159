"""The relations that queries see, how Spark gets to know them, and what they are audited by."""
