"""The kinds of authenticators that settings may name, and the chain of those that they do name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.gateway.authentication.chain import Chain
from ingest.gateway.authentication.http_authenticator import HttpAuthenticator
from ingest.gateway.authentication.jwt_authenticator import JwtAuthenticator
from ingest.gateway.authentication.ldap_authenticator import LdapAuthenticator
from ingest.gateway.authentication.postgres_authenticator import PostgresAuthenticator
from ingest.gateway.settings.authenticators import (
    HttpAuthenticatorSettings,
    LdapAuthenticatorSettings,
    PostgresAuthenticatorSettings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingest.gateway.authentication.authenticator import Authenticator
    from ingest.gateway.authentication.chain import AuthenticatorLink
    from ingest.gateway.authentication.passwords import PasswordChecks
    from ingest.gateway.settings.authenticators import AuthenticatorSettings
    from mqlake.clock import Clock


def open_chain(
    authenticator: Authenticator,
    named: Mapping[str, AuthenticatorSettings],
    clock: Clock,
    *,
    allow_anonymous: bool,
) -> Chain:
    """Return all authenticators of a gateway; those with names have no connection yet.

    Args:
        authenticator: Authenticator of the credentials file.
        named: The settings of the others.
        clock: How long things count.
        allow_anonymous: See `Chain`.

    Raises:
        KeysUnusable: A file of keys cannot be used.
    """
    passwords = authenticator.passwords
    links = {name: open_link(name, one, clock, passwords) for name, one in named.items()}
    prefixes = {name: one.username_prefix for name, one in named.items()}
    return Chain(authenticator, links, prefixes, allow_anonymous=allow_anonymous)


def open_link(
    name: str, settings: AuthenticatorSettings, clock: Clock, passwords: PasswordChecks
) -> AuthenticatorLink:
    """Return an authenticator; it has no connection yet.

    Args:
        name: Name in the settings.
        settings: Settings, whose class is the kind.
        clock: How long things count.
        passwords: Checks those that are not checked elsewhere.

    Raises:
        KeysUnusable: A file of keys cannot be used.
    """
    if isinstance(settings, HttpAuthenticatorSettings):
        return HttpAuthenticator(name, settings, clock)
    if isinstance(settings, PostgresAuthenticatorSettings):
        return PostgresAuthenticator(name, settings, passwords)
    if isinstance(settings, LdapAuthenticatorSettings):
        return LdapAuthenticator(name, settings)
    return JwtAuthenticator(name, settings, clock)
