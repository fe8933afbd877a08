"""One rule, and whom it is about."""

from enum import StrEnum

from msgspec import Struct

from embermq.access.authorization.patterns import Names, Regex

ADMIN_PREFIX = "$admin/queue/"
"""Topics below it are settings. They are allowed by rules whose `topics` name them, and by nothing else: neither by a
rule about every topic, nor by a regular expression, nor by what holds where no rule matches."""
EVENTS_PREFIX = "$SYS/events/"
"""Topics below it tell what all clients do. They are allowed by `topics` that begin like this, as they are written, and
by nothing else: `$SYS/#` is not enough."""
GUARDED = (ADMIN_PREFIX, EVENTS_PREFIX)


class Action(StrEnum):
    """What can be allowed. RECEIVE is every delivery, retained messages included; CREATE is making a durable queue by
    being the first to use its topic.

    The last two are about client ids instead of topics: CONNECT is using one at all, TAKEOVER is coming for a session
    that belongs to another user.
    """

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    RECEIVE = "receive"
    CREATE = "create"
    CONNECT = "connect"
    TAKEOVER = "takeover"


ON_CLIENT_IDS = frozenset({Action.CONNECT, Action.TAKEOVER})
ON_TOPICS = frozenset(Action) - ON_CLIENT_IDS


class Principal(Struct, frozen=True):
    """A client, as rules see it. `user` is "" for an anonymous one; `certificate` is the subject of its verified
    certificate as RFC 4514 writes it, "" without one."""

    user: str
    client_id: str
    certificate: str = ""


class RulePosition(Struct, frozen=True):
    """Where a rule was written; line 0 stands for the whole file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class Elsewhere(Struct, frozen=True):
    """Another server for a client, as MQTT 5 writes a Server Reference; `moved`: for good."""

    server: str
    moved: bool


class Rule(Struct, frozen=True):
    """Allows or denies actions, or sends who connects to another server: `elsewhere`.

    What is None is not asked for: any user, any topic. `anonymous` True is about clients without a user name, False
    about those with one. A rule has `filters`, `topic_regex` or neither. `fills_in` False: %u and %c in the filters
    stand for themselves.
    """

    allow: bool
    actions: frozenset[Action]
    place: RulePosition
    users: Names | None = None
    anonymous: bool | None = None
    client_ids: Names | None = None
    certificates: Names | None = None
    filters: tuple[str, ...] | None = None
    topic_regex: Regex | None = None
    fills_in: bool = True
    elsewhere: Elsewhere | None = None

    def is_about(self, principal: Principal) -> bool:
        """Whether the rule concerns this client, on whatever topic."""
        deny = not self.allow
        return (
            (self.anonymous is None or self.anonymous is (not principal.user))
            and (self.users is None or self.users.match(principal.user, deny=deny))
            and (
                self.client_ids is None
                or self.client_ids.match(principal.client_id, deny=deny, user=principal.user)
            )
            and (self.certificates is None or self.certificates.match(principal.certificate, deny=deny))
        )

    def opens(self, topic: str) -> bool:
        """Whether it may be asked about a topic, or a filter, at all: denials always may."""
        return not self.allow or self.filters is not None or not topic.startswith(GUARDED)

    def __str__(self) -> str:
        if self.elsewhere is not None:
            words = ["send", "for good" if self.elsewhere.moved else "for now", "to", self.elsewhere.server]
        else:
            words = [
                "allow" if self.allow else "deny",
                ", ".join(action for action in Action if action in self.actions),
            ]
        if self.anonymous is not None:
            words.append("for anonymous clients" if self.anonymous else "for clients with a user name")
        for what, names in (
            ("user", self.users),
            ("client id", self.client_ids),
            ("certificate", self.certificates),
        ):
            if names is not None:
                words.append(f"for {what} {names}")
        if self.actions <= ON_CLIENT_IDS:
            return " ".join(words)
        if self.topic_regex is not None:
            words.append(f"on topics matching {self.topic_regex.text!r}")
        else:
            words.append(f"on {', '.join(self.filters)}" if self.filters is not None else "on every topic")
        return " ".join(words)
