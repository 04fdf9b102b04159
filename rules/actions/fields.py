"""Types of arguments that hold templates; pydantic keeps the text and checks it."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from rules.errors import RuleError
from rules.templates import SECRET_NAME, Template


def _checked(text: str) -> str:
    try:
        Template.parse(text)
    except RuleError as exc:
        raise ArgumentError(exc) from exc
    return text


class ArgumentError(RuleError, ValueError):
    """A `RuleError` in the form that pydantic reports."""

    def __init__(self, cause: RuleError | str, *, hint: str = "") -> None:
        if isinstance(cause, str):
            super().__init__(cause, hint=hint)
        else:
            super().__init__(cause.problem, fragment=cause.fragment, hint=cause.hint)


def _checked_without_secrets(text: str) -> str:
    if Template.parse(_checked(text)).secrets:
        raise ArgumentError(
            "secret in a place that takes none", hint="url, headers and body of http take secrets"
        )
    return text


TemplateText = Annotated[str, AfterValidator(_checked_without_secrets)]
"""Text with placeholders."""

SecretTemplateText = Annotated[str, AfterValidator(_checked)]
"""Text with placeholders, also for secrets."""

SecretName = Annotated[str, Field(pattern=rf"^{SECRET_NAME}$")]
"""Name of a secret in the settings of the process."""

ConnectionName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
"""Name of a connection in the settings of the process."""


def is_template(value: Any) -> bool:
    """Tell whether a value that may be written as a template is one."""
    return isinstance(value, str) and bool(Template.parse(value).placeholders)


def check_text(value: str, check: Callable[[str], None]) -> None:
    """Apply a check to a text that has no placeholders; others are checked when they are filled."""
    constant = Template.parse(value).constant
    if constant is not None:
        check(constant)
