"""`mqlake doctor`: looks over a running system, says what is wrong and what to do."""
