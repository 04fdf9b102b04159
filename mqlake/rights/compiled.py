"""Rules as answers: may a client do something, found by topic and not rule by rule.

The rules that may concern a topic are found in trees of their filters, one tree for each whom they
are for; the first of them in the file that holds decides, and where none does the answer is no.
Answers are remembered, within bounds, for a connection asks the same again and again.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.rights.grants import NO_GRANTS, Grants
from mqlake.rights.model import Action, RightsFile, RightsRule
from mqlake.rights.patterns import Attributes, ClientIdPattern, TopicPattern
from mqlake.topics.matching import TopicFilterTrie, covers, overlaps
from mqlake.topics.names import SEPARATOR

MAX_REMEMBERED: Final = 512
"""Topics of one connection whose answers are kept, for each of publish and receive."""

_ALL_KINDS: Final = 0b111_111
"""A bit for each QoS, without and with RETAIN: `qos + 3 * retain`."""

Answer = TypeVar("Answer", int, bool)

_Whom = tuple[str, str]
_EVERYBODY: Final[_Whom] = ("", "")


class _Compiled:
    """One rule with one of its topic patterns; `connect` has an empty one."""

    __slots__ = (
        "_client_ids",
        "_rule",
        "allows",
        "is_for_all",
        "kinds",
        "number",
        "pattern",
        "qos",
    )

    def __init__(self, number: int, rule: RightsRule, pattern: TopicPattern | None) -> None:
        self.number = number
        self.pattern = pattern
        self.allows = rule.effect == "allow"
        self.qos = frozenset(rule.qos or (0, 1, 2))
        retains = (False, True) if rule.retain is None else (rule.retain,)
        self.kinds = sum(1 << (qos + 3 * retain) for qos in self.qos for retain in retains)
        self._rule = rule
        whom = (rule.tenants, rule.users, rule.roles, rule.client_ids, rule.authenticated)
        self.is_for_all = whom == (None, None, None, None, None)
        self._client_ids = [ClientIdPattern(text) for text in rule.client_ids or ()]

    def is_for(self, client: "ClientRights") -> bool:
        rule = self._rule
        if rule.tenants is not None and client.tenant not in rule.tenants:
            return False
        if rule.authenticated is not None and rule.authenticated != (client.username is not None):
            return False
        if rule.users is not None and client.username not in rule.users:
            return False
        if rule.roles is not None and client.roles.isdisjoint(rule.roles):
            return False
        return not self._client_ids or any(
            one.matches(client.client_id, client.bare_name, client.attributes)
            for one in self._client_ids
        )


_Tree = TopicFilterTrie[_Compiled]


class Rights:
    """All rules of a file.

    Args:
        file: Its content.
    """

    def __init__(self, file: RightsFile) -> None:
        self._trees: dict[Action, dict[_Whom, _Tree]] = {
            "publish": {},
            "subscribe": {},
            "receive": {},
        }
        self._connects: list[_Compiled] = []
        self._roles: dict[str, frozenset[str]] = {}
        self.rules = len(file.rules)
        members: dict[str, set[str]] = {}
        for role, users in file.roles.items():
            for user in users:
                members.setdefault(user, set()).add(role)
        self._roles = {user: frozenset(roles) for user, roles in members.items()}
        for number, rule in enumerate(file.rules):
            if "connect" in rule.actions:
                self._connects.append(_Compiled(number, rule, None))
                continue
            for text in rule.topics:
                self._add(_Compiled(number, rule, TopicPattern(text)), rule)

    def of(
        self,
        client_id: str,
        username: str | None,
        grants: Grants = NO_GRANTS,
        *,
        tenant: str = DEFAULT_TENANT,
    ) -> "ClientRights":
        """Return the rights of a client.

        Args:
            client_id: Client identifier of the client.
            username: User of its login, prepared; None: none.
            grants: Rights that its login brings.
            tenant: Tenant of the client; its users' names may begin with it and a slash.
        """
        return ClientRights(self, client_id, username, grants, tenant)

    def roles_of(self, username: str | None) -> frozenset[str]:
        return frozenset() if username is None else self._roles.get(username, frozenset())

    def connecting(self, client: "ClientRights") -> bool | None:
        """Return whether the client may have its client identifier; None: no rule decides."""
        for rule in self._connects:
            if rule.is_for(client):
                return rule.allows
        return None

    def matching(self, action: Action, client: "ClientRights", topic: str) -> list[_Compiled]:
        """Return the rules that decide on a topic name for a client, in the order of the file."""
        found = []
        names: list[str] = []
        for tree in self._trees_for(action, client):
            for rule in tree.match(topic):
                if not rule.is_for_all and not rule.is_for(client):
                    continue
                pattern = rule.pattern
                if pattern is not None and not pattern.is_plain:
                    names = names or topic.split(SEPARATOR)
                    who = client.client_id, client.bare_name, client.attributes
                    if not pattern.fits(names, *who):
                        continue
                found.append(rule)
        if len(found) > 1:
            found.sort(key=_by_number)
        return found

    def overlapping(
        self, action: Action, client: "ClientRights", topic_filter: str
    ) -> Iterator[tuple[_Compiled, str]]:
        """Yield the rules that have a topic in common with a filter, with their own filters.

        In the order of the file.
        """
        found: list[_Compiled] = []
        for tree in self._trees_for(action, client):
            found += tree.overlapping(topic_filter)
        found.sort(key=_by_number)
        for rule in found:
            if not rule.is_for_all and not rule.is_for(client):
                continue
            pattern = rule.pattern
            assert pattern is not None
            if pattern.is_plain:
                yield rule, pattern.superset
                continue
            mine = pattern.of(client.client_id, client.bare_name, client.attributes)
            if mine is not None and overlaps(mine, topic_filter):
                yield rule, mine

    def _add(self, compiled: _Compiled, rule: RightsRule) -> None:
        assert compiled.pattern is not None
        for action in rule.actions:
            for whom in _whom(rule):
                tree = self._trees[action].setdefault(whom, TopicFilterTrie())
                tree.insert(compiled.pattern.superset, compiled)

    def _trees_for(self, action: Action, client: "ClientRights") -> list[_Tree]:
        trees = self._trees[action]
        return [trees[whom] for whom in client.whom if whom in trees]


class ClientRights:
    """Rights of one client.

    The rules of its login are asked where none of the file decides.

    Attributes:
        client_id: Client identifier that it has.
        username: User of its login; None: none.
        grants: Rights that its login brings.
        roles: Roles of that user, and of that login.
        tenant: Whose it is.
        bare_name: The user's without the tenant: `%u`.
    """

    __slots__ = (
        "_asked",
        "_publish",
        "_receive",
        "bare_name",
        "client_id",
        "grants",
        "roles",
        "tenant",
        "username",
        "whom",
    )

    def __init__(
        self, rights: Rights, client_id: str, username: str | None, grants: Grants, tenant: str
    ) -> None:
        self.tenant = tenant
        self.bare_name = None if username is None else username.removeprefix(tenant + SEPARATOR)
        self.client_id = client_id
        self.username = username
        self.grants = grants
        rules = grants.rules
        self._asked = (rights, Rights(RightsFile(rules=rules))) if rules else (rights,)
        self.take(rights)

    def take(self, rights: Rights) -> None:
        """Go by other rules from now on."""
        self._asked = (rights, *self._asked[1:])
        self.roles = rights.roles_of(self.username) | self.grants.roles
        self.whom = _whom_of(self.tenant, self.username, self.roles)
        self._publish: dict[str, int] = {}
        self._receive: dict[str, bool] = {}

    @property
    def attributes(self) -> Attributes:
        """Texts by name from its login, or from its certificate."""
        return self.grants.attributes

    def may_connect(self) -> bool:
        """Tell whether it may have its client identifier."""
        for rights in self._asked:
            allows = rights.connecting(self)
            if allows is not None:
                return allows
        return False

    def may_publish(self, topic_name: str, qos: int, retain: bool) -> bool:
        """Tell whether it may publish a message."""
        kinds = self._publish.get(topic_name)
        if kinds is None:
            kinds = self._kinds(topic_name)
        return kinds >> (qos + 3 * retain) & 1 == 1

    def may_receive(self, topic_name: str) -> bool:
        """Tell whether it may be sent messages of a topic."""
        known = self._receive.get(topic_name)
        if known is None:
            rules = self._matching("receive", topic_name)
            known = bool(rules) and rules[0].allows
            _remember(self._receive, topic_name, known)
        return known

    def may_subscribe(self, topic_filter: str, qos: int) -> bool:
        """Tell whether it may ask for a plain topic filter.

        It may where the first rule that decides allows it: one that allows has to cover the whole
        filter, one that denies decides as soon as a topic of the filter is its own.
        """
        return self._may_have("subscribe", topic_filter, qos)

    def may_receive_all(self, topic_filter: str) -> bool:
        """Tell whether it may be sent messages of every topic that a plain filter matches."""
        return self._may_have("receive", topic_filter, 0)

    def _may_have(self, action: Action, topic_filter: str, qos: int) -> bool:
        for rights in self._asked:
            for rule, mine in rights.overlapping(action, self, topic_filter):
                if qos not in rule.qos:
                    continue
                if not rule.allows:
                    return False
                if covers(mine, topic_filter):
                    return True
        return False

    def _matching(self, action: Action, topic_name: str) -> list[_Compiled]:
        """Return the rules that decide on a topic name, in the order in which they are asked."""
        rights, *granted = self._asked
        found = rights.matching(action, self, topic_name)
        for more in granted:
            found += more.matching(action, self, topic_name)
        return found

    def _kinds(self, topic_name: str) -> int:
        """Return which kinds of messages it may publish to a topic, a bit for each."""
        allowed = decided = 0
        for rule in self._matching("publish", topic_name):
            if rule.allows:
                allowed |= rule.kinds & ~decided
            decided |= rule.kinds
            if decided == _ALL_KINDS:
                break
        _remember(self._publish, topic_name, allowed)
        return allowed


def _remember(answers: dict[str, Answer], topic_name: str, answer: Answer) -> None:
    if len(answers) >= MAX_REMEMBERED:
        answers.clear()
    answers[topic_name] = answer


def _by_number(rule: _Compiled) -> int:
    return rule.number


def _whom(rule: RightsRule) -> Sequence[_Whom]:
    """Return under whom a rule is found: as few clients as it says may be for."""
    if rule.users is not None:
        return [("user", name) for name in dict.fromkeys(rule.users)]
    if rule.roles is not None:
        return [("role", name) for name in dict.fromkeys(rule.roles)]
    if rule.tenants is not None:
        return [("tenant", name) for name in dict.fromkeys(rule.tenants)]
    return [_EVERYBODY]


def _whom_of(tenant: str, username: str | None, roles: Iterable[str]) -> tuple[_Whom, ...]:
    all_of_it = (_EVERYBODY, ("tenant", tenant))
    if username is None:
        return all_of_it
    return (*all_of_it, ("user", username), *(("role", name) for name in sorted(roles)))
