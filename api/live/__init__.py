"""What happens now: topics seen lately, and streams of messages, rule outputs and metrics."""
