"""One module a subject; each has a `router`."""

from api.web import segments as segments  # its convertors stand in the paths
