"""The dashboard: files for a browser, and the code that serves them (`docs/dashboard.md`)."""
