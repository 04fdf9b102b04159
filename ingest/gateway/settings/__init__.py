"""Settings of a gateway, a module for each group."""
