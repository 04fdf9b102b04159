"""The front end of the SQL that users write, in rules and queries: from a text to its tree."""
