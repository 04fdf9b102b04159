"""The rule engine: what evaluates rules on records, and what puts versions of rules in force."""
