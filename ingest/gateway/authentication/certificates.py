"""A verified client certificate as the client's identity."""

from mqlake.saslprep import UnpreparableText, prepare


def username_of_certificate(common_name: str | None) -> str | None:
    """Return the user name that a certificate stands for, in the form SASLprep gives it.

    Args:
        common_name: Of the subject, as `get_extra_info("client_certificate_common_name")` has it:
            None without a verified certificate.

    Returns:
        None without a name, and with one that cannot be a user's.
    """
    if common_name is None:
        return None
    try:
        return prepare(common_name, "common name")
    except UnpreparableText:
        return None
