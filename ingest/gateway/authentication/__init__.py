"""Who a client is: user name and password, enhanced authentication, certificates."""
