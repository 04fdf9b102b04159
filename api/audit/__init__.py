"""The audit log: each request for a change is a record of the log before it is answered."""
