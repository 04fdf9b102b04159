"""Live views: topics seen lately, and streams of messages, rule outputs and metrics."""
