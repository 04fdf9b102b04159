"""How the rule language is written: as a dialect of sqlglot, from tokens to nodes of a tree."""
