"""From credentials to callers."""

import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from api.access.materialised import MaterialisedAccess
from api.access.tokens import KEY_PREFIX, SESSION_PREFIX, Secret, read_secret
from mqlake.clock import Clock
from mqlake.errors import OperationalError
from mqlake.records.access import (
    ROLES,
    TOKEN_NAME,
    Account,
    LoginSession,
    Role,
    SubjectKind,
    key_id_of,
    key_name,
)
from mqlake.topics.matching import covers


@dataclass(slots=True, frozen=True)
class Caller:
    """A caller of the API."""

    name: str
    """`api-token`, `key:<id>`, or the account's name."""
    role: Role
    kind: SubjectKind
    session_id: str | None = None
    """Session of a caller who has come by its cookie."""
    csrf_token: str | None = None
    """CSRF token of that session."""
    expires_at: int | None = None
    """End of the key or the session, in milliseconds; None: it has none."""
    token_mark: str = ""
    """Mark of the token that a caller has shown; it does not reveal the token."""
    topic_filters: tuple[str, ...] | None = None
    """Filters of the topics that he may use; None: all topics, and data without one."""
    tenants: tuple[str, ...] | None = None
    """Tenants that he may ask about; None: all, and data of no tenant."""

    @property
    def subject(self) -> str:
        """Identifier of the key, name of the account, mark of the token."""
        return self.token_mark if self.kind == "token" else key_id_of(self.name)

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    def is_of(self, tenant: str) -> bool:
        """Tell whether he may ask for the data of a tenant."""
        return self.tenants is None or tenant in self.tenants

    def is_over(self, tenants: Sequence[str] | None) -> bool:
        """Tell whether he has at least these tenants; None: all tenants."""
        return self.tenants is None or (tenants is not None and all(map(self.is_of, tenants)))

    def may_have(self, topic_filter: str) -> bool:
        """Tell whether all that a valid topic filter, or topic name, matches is his to have."""
        known = self.topic_filters
        return known is None or any(covers(one, topic_filter) for one in known)


def of_account(name: str, account: Account) -> Caller:
    """Return the caller who has logged in with an account's password."""
    return Caller(
        name,
        account.role,
        "account",
        topic_filters=account.topic_filters,
        tenants=account.tenants,
    )


class Callers:
    """Knows callers by their credentials.

    Args:
        token: The administrator's, which works without the log.
        view: View of keys, accounts and sessions.
        clock: Says which keys and sessions have expired.
    """

    def __init__(self, token: str, view: MaterialisedAccess, clock: Clock) -> None:
        self._token = token.encode()
        digest = hmac.digest(self._token, b"mqlake session of the token", "sha256")
        self._administrator = Caller(TOKEN_NAME, "admin", "token", token_mark=digest.hex())
        self._view = view
        self._clock = clock

    def by_token(self, token: str) -> Caller | None:
        """Return the caller of a bearer token; None: unknown.

        Raises:
            OperationalError: The keys have not been read yet.
        """
        if hmac.compare_digest(token.encode(errors="replace"), self._token):
            return self._administrator
        secret = read_secret(token, KEY_PREFIX)
        if secret is None:
            return None
        self._need_view()
        key = self._view.key(secret.id)
        if key is None or not secret.fits(key.hash):
            return None
        return self._of_key(secret.id)

    def by_session(self, cookie: str) -> Caller | None:
        """Return the caller of a session; None: unknown, or no longer.

        Raises:
            OperationalError: The sessions have not been read yet.
        """
        secret = read_secret(cookie, SESSION_PREFIX)
        if secret is None:
            return None
        self._need_view()
        session = self._view.session(secret.id)
        if session is None or not secret.fits(session.hash) or self._is_past(session.expires_at):
            return None
        caller = self._of_subject(session)
        return None if caller is None else _with_session(caller, secret, session)

    def named(self, name: str) -> Caller | None:
        """Return the caller of a name, with the rights that he has now; None: he is gone.

        Raises:
            OperationalError: The keys and accounts have not been read yet.
        """
        if name == TOKEN_NAME:
            return self._administrator
        self._need_view()
        if (key_id := key_id_of(name)) != name:
            return self._of_key(key_id)
        account = self._view.account(name)
        return None if account is None else of_account(name, account)

    def logged_in(self) -> Iterator[tuple[str, LoginSession, Caller]]:
        """Yield the sessions that count by identifier, each with whose it is.

        Raises:
            OperationalError: The sessions have not been read yet.
        """
        self._need_view()
        for session_id, session in self._view.sessions():
            caller = None if self._is_past(session.expires_at) else self._of_subject(session)
            if caller is not None:
                yield session_id, session, caller

    def is_current(self, caller: Caller) -> bool:
        """Tell whether a caller who was let in still may come in.

        Raises:
            OperationalError: The keys have not been read yet.
        """
        if caller.session_id is not None:
            self._need_view()
            session = self._view.session(caller.session_id)
            if session is None or self._is_past(session.expires_at):
                return False
            found = self._of_subject(session)
        elif caller.kind == "key":
            self._need_view()
            found = self._of_key(caller.subject)
        else:
            return True
        return found is not None and (found.topic_filters, found.tenants) == (
            caller.topic_filters,
            caller.tenants,
        )

    def _of_subject(self, session: LoginSession) -> Caller | None:
        if session.subject_kind == "token":  # a session of another token has ended with it
            is_ours = hmac.compare_digest(session.subject, self._administrator.subject)
            return self._administrator if is_ours else None
        if session.subject_kind == "key":
            return self._of_key(session.subject)
        account = self._view.account(session.subject)
        if account is None or session.created_at < account.password_changed_at:
            return None
        return of_account(session.subject, account)

    def _of_key(self, key_id: str) -> Caller | None:
        key = self._view.key(key_id)
        if key is None or (key.expires_at is not None and self._is_past(key.expires_at)):
            return None
        return Caller(
            key_name(key_id),
            key.role,
            "key",
            expires_at=key.expires_at,
            topic_filters=key.topic_filters,
            tenants=key.tenants,
        )

    def _is_past(self, at_ms: int) -> bool:
        return self._clock.now_ms() >= at_ms

    def _need_view(self) -> None:
        if not self._view.is_complete:
            raise OperationalError("the API is reading mqlake.access: ask again in a moment")


def _with_session(caller: Caller, secret: Secret, session: LoginSession) -> Caller:
    ends = [at for at in (caller.expires_at, session.expires_at) if at is not None]
    return replace(caller, session_id=secret.id, csrf_token=secret.csrf_token, expires_at=min(ends))
