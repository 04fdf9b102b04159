"""mqlake: the shared vocabulary of the platform and its command line."""
