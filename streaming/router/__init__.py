"""The router: Spark that routes and evaluates stateless rules, and does nothing else."""
