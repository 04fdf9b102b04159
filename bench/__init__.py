"""`mqlake bench`: performance and resource use of the system, measured on this machine."""
