"""Changes of who may use the API: each is a record of `mqlake.access`."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from api.access.callers import Caller
from api.access.materialised import MaterialisedAccess
from api.access.tokens import KEY_PREFIX, Secret, new_secret
from api.following import Followed
from api.log import LogAppender
from mqlake.access_records import (
    TOKEN_NAME,
    AccessKind,
    AccessValue,
    Account,
    ApiKey,
    LoginSession,
    Role,
    access_key,
    encode_access,
)
from mqlake.clock import Clock
from mqlake.credentials import Verifier, make_verifier, read_verifier
from mqlake.errors import MqlakeError
from mqlake.log.blocking import Append
from mqlake.record_versions import VERSION_HEADER, Headers
from mqlake.records import ACCESS
from mqlake.saslprep import UnpreparableText, prepare

PASSWORD_ROUNDS: Final = 600_000
"""OWASP's number for PBKDF2 with SHA-256: some 0.2 s. People log in seldom, so unlike a gateway's
clients they can be made to wait."""

MAX_KEYS: Final = 10_000
MAX_ACCOUNTS: Final = 10_000
MAX_SESSIONS: Final = 10_000
MAX_SESSIONS_OF_ONE: Final = 20
"""Of one key, account or token: with another one the oldest of them ends."""

ALL_TOPICS: Final = "topic_filters: an administrator has all topics, expected null"

_HEADERS: Final[Headers] = [VERSION_HEADER]

_Change = tuple[AccessKind, str, AccessValue | None]


class Taken(MqlakeError):  # noqa: N818 - it names what is in the way
    """There is one of this name already, or no room for another."""


class Unknown(MqlakeError):  # noqa: N818
    """There is none of this name."""


class ForAllTopics(MqlakeError):  # noqa: N818
    """An administrator has all topics."""


class NotYours(MqlakeError):  # noqa: N818
    """Who is for some tenants gives nobody others."""


class AccessChanges:
    """Writes changes; safe to use from any thread.

    Args:
        log: Where to.
        view: Has all that is there; takes what is written at once.
        clock: For the times in records.
        rounds: Of PBKDF2, for new passwords.
    """

    def __init__(
        self,
        log: LogAppender,
        view: MaterialisedAccess,
        clock: Clock,
        rounds: int = PASSWORD_ROUNDS,
    ) -> None:
        self._log = log
        self._view = view
        self._clock = clock
        self._rounds = rounds
        self._lock = threading.Lock()
        # What an unknown name is checked against: it takes as long as a known one.
        self._nobody = Verifier(b"\0" * 16, rounds, b"\0" * 32, b"\0" * 32)

    def create_key(
        self,
        role: Role,
        description: str,
        expires_at: int | None,
        by: Caller,
        topic_filters: tuple[str, ...] | None = None,
        tenants: tuple[str, ...] | None = None,
    ) -> tuple[str, str, ApiKey]:
        """Make a key; return its identifier, the key itself, which is never known again, and it.

        Raises:
            Taken: There are too many.
            NotYours: It would be for tenants that who makes it is not for.
            LogError: The log does not answer; the other methods raise it too.
        """
        secret = new_secret()
        now_ms = self._clock.now_ms()
        key = ApiKey(
            role,
            description,
            secret.hash,
            now_ms,
            by.name,
            expires_at,
            topic_filters,
            _given(by, tenants),
        )
        with self._lock:
            if len(self._view.all_keys()) >= MAX_KEYS:
                raise Taken(f"there are {MAX_KEYS} keys, which is the limit: delete some")
            self._write([("key", secret.id, key)])
        return secret.id, secret.text(KEY_PREFIX), key

    def delete_key(self, key_id: str, by: Caller) -> None:
        """Revoke a key; sessions that were opened by it end.

        Raises:
            Unknown: There is none, or none that is his.
        """
        with self._lock:
            key = self._view.key(key_id)
            if key is None or not by.is_over(key.tenants):
                raise Unknown(f"there is no key {key_id!r}")
            self._write([("key", key_id, None), *self._sessions_of("key", key_id)])

    def create_account(
        self,
        name: str,
        role: Role,
        password: str | None,
        by: Caller,
        topic_filters: tuple[str, ...] | None = None,
        tenants: tuple[str, ...] | None = None,
    ) -> Account:
        """Make an account; without a password nobody logs in with one.

        Raises:
            Taken: The name is, or there are too many.
            NotYours: It would be for tenants that who makes it is not for.
            UnpreparableText: The password is none.
        """
        verifier = ""
        if password is not None:
            verifier = str(make_verifier(password, iterations=self._rounds))
        now_ms = self._clock.now_ms()
        given = _given(by, tenants)
        account = Account(role, verifier, now_ms, by.name, now_ms, topic_filters, given)
        with self._lock:
            if name == TOKEN_NAME or self._view.account(name) is not None:
                raise Taken(f"there is an account {name!r}: change it with PUT")
            if len(self._view.accounts()) >= MAX_ACCOUNTS:
                raise Taken(f"there are {MAX_ACCOUNTS} accounts, which is the limit")
            self._write([("account", name, account)])
        return account

    def change_account(
        self,
        name: str,
        role: Role | None,
        password: str | None,
        by: Caller,
        topic_filters: tuple[str, ...] | Literal["same"] | None = "same",
        tenants: tuple[str, ...] | Literal["same"] | None = "same",
    ) -> Account:
        """Give an account another role, password, topics or tenants.

        A new password ends its sessions.

        Raises:
            Unknown: There is none, or none that is his.
            NotYours: It would be for tenants that who changes it is not for.
            ForAllTopics: It would be an administrator with some topics alone.
            UnpreparableText: The password is none.
        """
        verifier = None if password is None else make_verifier(password, iterations=self._rounds)
        with self._lock:
            old = self._view.account(name)
            if old is None or not by.is_over(old.tenants):
                raise Unknown(f"there is no account {name!r}")
            if tenants != "same":
                old = replace(old, tenants=_given(by, tenants))
            filters = old.topic_filters if topic_filters == "same" else topic_filters
            account = replace(old, role=role or old.role, topic_filters=filters)
            if account.role == "admin" and filters is not None:
                raise ForAllTopics(ALL_TOPICS)
            ended: list[_Change] = []
            if verifier is not None:
                # A session of the same millisecond must not outlive the old password.
                changed_at = self._clock.now_ms() + 1
                account = replace(account, verifier=str(verifier), password_changed_at=changed_at)
                ended = self._sessions_of("account", name)
            self._write([("account", name, account), *ended])
        return account

    def delete_account(self, name: str, by: Caller) -> None:
        """Delete an account; its sessions end.

        Raises:
            Unknown: There is none, or none that is his.
        """
        with self._lock:
            account = self._view.account(name)
            if account is None or not by.is_over(account.tenants):
                raise Unknown(f"there is no account {name!r}")
            self._write([("account", name, None), *self._sessions_of("account", name)])

    def forget_tenant(self, tenant: str) -> int:
        """Delete keys and accounts for a tenant alone, and take it from those for others too.

        Return how many these were.
        """
        changes: list[_Change] = []
        count = 0
        with self._lock:
            found: list[tuple[Literal["key", "account"], str, ApiKey | Account]] = [
                *(("key", name, one) for name, one in self._view.all_keys()),
                *(("account", name, one) for name, one in self._view.accounts()),
            ]
            for kind, name, one in found:
                if tenant not in (one.tenants or ()):
                    continue
                count += 1
                left = tuple(other for other in one.tenants or () if other != tenant)
                if left:
                    changes.append((kind, name, replace(one, tenants=left)))
                else:
                    changes += [(kind, name, None), *self._sessions_of(kind, name)]
            if changes:
                self._write(changes)
        return count

    def accepts(self, name: str, password: str) -> bool:
        """Tell whether this is an account's password; takes as long when there is no account."""
        account = self._view.account(name)
        kept = "" if account is None else account.verifier
        verifier = read_verifier(kept) if kept else self._nobody
        try:
            prepared = prepare(password, "password")
        except UnpreparableText:
            prepared = "\0"  # nobody's, since it cannot be prepared either
        return verifier.accepts(prepared.encode()) and kept != ""

    def open_session(self, caller: Caller, lifetime_seconds: float) -> Secret:
        """Remember that somebody has logged in; return the secret of the session.

        What has expired by then is removed from the log, and so is the caller's oldest session when
        it has too many.

        Raises:
            Taken: There are too many.
        """
        secret = new_secret()
        now_ms = self._clock.now_ms()
        subject = caller.subject
        with self._lock:
            sessions = self._view.sessions()
            old: list[_Change] = [
                ("session", one, None) for one, found in sessions if found.expires_at <= now_ms
            ]
            own = sorted(
                (found.created_at, one)
                for one, found in sessions
                if (found.subject_kind, found.subject) == (caller.kind, subject)
                and found.expires_at > now_ms
            )
            ended = own[: max(0, len(own) - MAX_SESSIONS_OF_ONE + 1)]
            old += [("session", one, None) for _, one in ended]
            if len(sessions) - len(old) >= MAX_SESSIONS:
                raise Taken(f"there are {MAX_SESSIONS} sessions, which is the limit")
            ends = now_ms + round(lifetime_seconds * 1000)
            session = LoginSession(caller.kind, subject, secret.hash, self._begin(caller), ends)
            self._write([("session", secret.id, session), *old])
        return secret

    def close_session(self, session_id: str) -> None:
        """End a session."""
        with self._lock:
            self._write([("session", session_id, None)])

    def _begin(self, caller: Caller) -> int:
        """Return when a session begins: not before the password by which it does."""
        account = self._view.account(caller.name) if caller.kind == "account" else None
        now_ms = self._clock.now_ms()
        return now_ms if account is None else max(now_ms, account.password_changed_at)

    def _sessions_of(self, kind: str, subject: str) -> list[_Change]:
        return [
            ("session", session_id, None)
            for session_id, session in self._view.sessions()
            if (session.subject_kind, session.subject) == (kind, subject)
        ]

    def _write(self, changes: Sequence[_Change]) -> None:
        records = [
            Append(
                0, access_key(kind, name), None if value is None else encode_access(value), _HEADERS
            )
            for kind, name, value in changes
        ]
        offsets = self._log.append_all(ACCESS, records, what=f"{changes[0][0]} record")
        self._view.take(
            [
                Followed(ACCESS, offset, record.key, record.value)
                for offset, record in zip(offsets, records, strict=True)
            ],
            is_old=False,
        )


def _given(by: Caller, tenants: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return for which tenants what somebody makes is; with None said for all of his."""
    if tenants is None:
        return by.tenants
    if not by.is_over(tenants):
        raise NotYours(f"{by.name} is for {', '.join(by.tenants or ())} alone")
    return tenants
