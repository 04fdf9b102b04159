"""mqlake: the shared vocabulary of the platform and its command line."""

from typing import Final

VERSION: Final = "0.1.0"
"""As in pyproject.toml."""
