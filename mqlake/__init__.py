"""mqlake: the vocabulary that all parts of the platform share."""

from typing import Final

VERSION: Final = "0.1.0"
"""As in pyproject.toml."""
