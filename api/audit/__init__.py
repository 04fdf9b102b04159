"""Who has changed what: each request that would is a record of the log before it is answered."""
