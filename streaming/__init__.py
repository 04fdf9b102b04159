"""The Spark application: the router, the history and what keeps them running."""
