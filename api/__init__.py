"""The REST API: reads what the other processes write down; never touches a gateway's memory."""
