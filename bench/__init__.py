"""`mqlake bench`: what the system does and takes, measured on this machine."""
