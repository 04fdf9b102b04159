"""Reference tables: reading uploads, asking for changes, what is known of them."""
