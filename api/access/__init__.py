"""Users of the API: keys, accounts and sessions, kept in the log as `mqlake.access`."""
