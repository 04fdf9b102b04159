"""Changes of keys, accounts and sessions: each is a record of `mqlake.access`."""

from dataclasses import replace
from typing import Final, Literal

from api.access.callers import Caller
from api.access.materialised import MaterialisedAccess
from api.access.room import MAX_ACCOUNTS, MAX_KEYS, HeldSession, need_room, sessions_to_end
from api.access.tokens import KEY_PREFIX, Secret, new_secret
from api.log.appending import LogAppender
from api.log.repository import InTheWay, NotThere, RecordKind, Repository
from mqlake.clock import Clock
from mqlake.errors import MqlakeError
from mqlake.records.access import (
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
from mqlake.records.messages import ACCESS
from mqlake.security.credentials import Verifier, make_verifier, read_verifier
from mqlake.security.saslprep import UnpreparableText, prepare

PASSWORD_ROUNDS: Final = 600_000
"""OWASP's number for PBKDF2 with SHA-256: some 0.2 s. People log in seldom, so unlike a gateway's
clients they can be made to wait."""

ALL_TOPICS: Final = "topic_filters: an administrator has all topics, expected null"

_Change = tuple[tuple[AccessKind, str], AccessValue | None]
"""Kind and name, and the new value; None: it is deleted."""


class ForAllTopics(MqlakeError):  # noqa: N818
    """An administrator has all topics."""


class NotYours(MqlakeError):  # noqa: N818
    """A caller for some tenants cannot give others away."""


class AccessChanges(Repository[tuple[AccessKind, str], AccessValue, MaterialisedAccess]):
    """Writes changes.

    Args:
        log: As of all.
        view: As of all.
        clock: As of all.
        rounds: Rounds of PBKDF2 for new passwords.
    """

    kind = RecordKind(
        ACCESS, lambda key: access_key(*key), encode_access, lambda key: f"{key[0]} record"
    )

    def __init__(
        self,
        log: LogAppender,
        view: MaterialisedAccess,
        clock: Clock,
        rounds: int = PASSWORD_ROUNDS,
    ) -> None:
        super().__init__(log, view, clock)
        self._rounds = rounds
        # An unknown name is checked against this, so that it takes as long as a known one.
        self._nobody = Verifier(b"\0" * 16, rounds, b"\0" * 32, b"\0" * 32)

    def find_key(self, key_id: str, by: Caller) -> ApiKey:
        """Return a key that a caller may see and revoke.

        Raises:
            NotThere: There is none, or none that is his.
        """
        key = self._view.key(key_id)
        if key is None or not by.is_over(key.tenants):
            raise NotThere(f"there is no key {key_id!r}")
        return key

    def find_account(self, name: str, by: Caller) -> Account:
        """Return an account that a caller may see and change.

        Raises:
            NotThere: There is none, or none that is his.
        """
        account = self._view.account(name)
        if account is None or not by.is_over(account.tenants):
            raise NotThere(f"there is no account {name!r}")
        return account

    def create_key(
        self,
        role: Role,
        description: str,
        expires_at: int | None,
        by: Caller,
        topic_filters: tuple[str, ...] | None = None,
        tenants: tuple[str, ...] | None = None,
    ) -> tuple[str, str, ApiKey]:
        """Make a key; return identifier, secret, which is never known again, and the record.

        Raises:
            InTheWay: There are too many, or too many for one of the tenants.
            NotYours: It would be for tenants that the caller is not for.
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
            there = (one.tenants for _, one in self._view.all_keys())
            need_room("keys", key.tenants, there, MAX_KEYS)
            self.write([(("key", secret.id), key)])
        return secret.id, secret.text(KEY_PREFIX), key

    def delete_key(self, key_id: str, by: Caller) -> None:
        """Revoke a key; sessions that were opened by it end.

        Raises:
            NotThere: There is none, or none that is his.
        """
        with self._lock:
            self.find_key(key_id, by)
            self.write([(("key", key_id), None), *self._sessions_of("key", key_id)])

    def create_account(
        self,
        name: str,
        role: Role,
        password: str | None,
        by: Caller,
        topic_filters: tuple[str, ...] | None = None,
        tenants: tuple[str, ...] | None = None,
    ) -> Account:
        """Make an account; without a password there is no login with one.

        Raises:
            InTheWay: The name is, or there are too many, or too many for one of the tenants.
            NotYours: It would be for tenants that the caller is not for.
            UnpreparableText: The password is none.
        """
        verifier = ""
        if password is not None:
            verifier = str(make_verifier(password, iterations=self._rounds))
        now_ms = self._clock.now_ms()
        given = _given(by, tenants)
        account = Account(role, verifier, now_ms, by.name, now_ms, topic_filters, given)
        with self._lock:
            known = self._view.account(name)
            if known is not None and by.is_over(known.tenants):
                raise InTheWay(f"there is an account {name!r}: change it with PUT")
            if known is not None or name == TOKEN_NAME:
                raise InTheWay(f"the name {name!r} is taken: choose another one")
            there = (one.tenants for _, one in self._view.accounts())
            need_room("accounts", given, there, MAX_ACCOUNTS)
            self.write([(("account", name), account)])
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
            NotThere: There is none, or none that is his.
            InTheWay: There are too many for one of its new tenants.
            NotYours: It would be for tenants that the caller is not for.
            ForAllTopics: It would be an administrator with some topics alone.
            UnpreparableText: The password is none.
        """
        verifier = None if password is None else make_verifier(password, iterations=self._rounds)
        with self._lock:
            old = self.find_account(name, by)
            if tenants != "same":
                given = _given(by, tenants)
                others = (one.tenants for other, one in self._view.accounts() if other != name)
                need_room("accounts", given, others, MAX_ACCOUNTS, replaced=old.tenants)
                old = replace(old, tenants=given)
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
            self.write([(("account", name), account), *ended])
        return account

    def delete_account(self, name: str, by: Caller) -> None:
        """Delete an account; its sessions end.

        Raises:
            NotThere: There is none, or none that is his.
        """
        with self._lock:
            self.find_account(name, by)
            self.write([(("account", name), None), *self._sessions_of("account", name)])

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
                    changes.append(((kind, name), replace(one, tenants=left)))
                else:
                    changes += [((kind, name), None), *self._sessions_of(kind, name)]
            self.write(changes)
        return count

    def accepts(self, name: str, password: str) -> bool:
        """Tell whether this is an account's password; takes as long when there is no account."""
        account = self._view.account(name)
        kept = "" if account is None else account.verifier
        verifier = read_verifier(kept) if kept else self._nobody
        try:
            prepared = prepare(password, "password")
        except UnpreparableText:
            prepared = "\0"  # no user's, since it cannot be prepared either
        return verifier.accepts(prepared.encode()) and kept != ""

    def open_session(self, caller: Caller, lifetime_seconds: float) -> Secret:
        """Remember a login; return the secret of its session.

        Sessions that count no more are removed from the log, and so are those that end to make
        room, see `sessions_to_end`.

        Raises:
            InTheWay: There are too many.
        """
        secret = new_secret()
        now_ms = self._clock.now_ms()
        with self._lock:
            ends = now_ms + round(lifetime_seconds * 1000)
            begins = self._begin(caller)
            session = LoginSession(caller.kind, caller.subject, secret.hash, begins, ends)
            there: list[HeldSession] = []
            old: list[str] = []
            for one, found in self._view.sessions():
                held = self._held(one, found) if found.expires_at > now_ms else None
                if held is None:
                    old.append(one)
                else:
                    there.append(held)
            new = HeldSession(
                secret.id,
                begins,
                (caller.kind, caller.subject),
                caller.tenants,
                is_root=caller.role == "admin" and caller.tenants is None,
            )
            old += sessions_to_end(new, there)
            ended: list[_Change] = [(("session", one), None) for one in old]
            self.write([(("session", secret.id), session), *ended])
        return secret

    def close_session(self, session_id: str) -> None:
        """End a session."""
        with self._lock:
            self.write([(("session", session_id), None)])

    def _held(self, session_id: str, session: LoginSession) -> HeldSession | None:
        """Return a session with its owner; None: the owner is gone."""
        kind, name = session.subject_kind, session.subject
        tenants, role = None, "admin"
        if kind != "token":
            of = self._view.key(name) if kind == "key" else self._view.account(name)
            if of is None:
                return None
            if isinstance(of, Account) and session.created_at < of.password_changed_at:
                return None
            tenants, role = of.tenants, of.role
        is_root = role == "admin" and tenants is None
        return HeldSession(session_id, session.created_at, (kind, name), tenants, is_root)

    def _begin(self, caller: Caller) -> int:
        """Return when a session begins: not before the password by which it does."""
        account = self._view.account(caller.name) if caller.kind == "account" else None
        now_ms = self._clock.now_ms()
        return now_ms if account is None else max(now_ms, account.password_changed_at)

    def _sessions_of(self, kind: str, subject: str) -> list[_Change]:
        return [
            (("session", session_id), None)
            for session_id, session in self._view.sessions()
            if (session.subject_kind, session.subject) == (kind, subject)
        ]


def _given(by: Caller, tenants: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the tenants of a new key or account; with None said all of its maker's."""
    if tenants is None:
        return by.tenants
    if not by.is_over(tenants):
        raise NotYours(f"{by.name} is for {', '.join(by.tenants or ())} alone")
    return tenants
