"""Rooms of one module a subject; each module has a `router`."""

from api.web import segments as segments  # its convertors stand in the paths
