"""The command line: one module a command, each loaded only when it is used."""
