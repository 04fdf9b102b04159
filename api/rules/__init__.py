"""Rules as the API keeps, changes, tries and counts them; the routes are in `api.routes`."""
