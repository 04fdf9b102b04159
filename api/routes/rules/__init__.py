"""Rules, what they decode and look up, how they are tried out, what failed in them."""
