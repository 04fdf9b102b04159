"""Authentication of clients: user name and password, enhanced authentication, certificates."""
