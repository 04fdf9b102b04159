"""Reference tables: reading uploads, asking for changes, and their materialised view."""
