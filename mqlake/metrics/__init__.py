"""What processes offer to Prometheus: the names, and how they are served."""
