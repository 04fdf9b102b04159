"""The rule engine: evaluates rules on records, and puts versions of rules in force."""
