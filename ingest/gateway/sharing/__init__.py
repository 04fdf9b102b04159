"""Share groups: members, owners, what is given to whom and read again."""
