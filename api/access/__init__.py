"""Who may use the API: keys, accounts, sessions, kept in the log as `mqlake.access`."""
