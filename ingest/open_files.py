"""Limits of the operating system for this process."""

import resource

SPARE_FILES = 256
"""Open files of a process beside its clients' sockets."""


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one; return how many files may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
