"""The dashboard: what a browser runs, and the little that serves it (`docs/dashboard.md`)."""
