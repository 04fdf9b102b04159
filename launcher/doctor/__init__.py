"""`mqlake doctor`: looks over a running system, tells faults and remedies."""
