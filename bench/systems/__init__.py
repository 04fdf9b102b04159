"""Systems that are measured, and what their processes use."""
