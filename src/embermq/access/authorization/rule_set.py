"""All rules together, and what they come to for one client."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from embermq.access.authorization.patterns import fill_in, has_placeholder, widest
from embermq.access.authorization.rules import (
    EVENTS_PREFIX,
    GUARDED,
    ON_CLIENT_IDS,
    Action,
    Elsewhere,
    Principal,
    Rule,
)
from embermq.mqtt.topics.names import covers, matches, overlap

CACHED_TOPIC_CHARACTERS_MAX = 256
"""Decisions on longer topics are not remembered."""


class Decision(Struct, frozen=True):
    """The answer, the rule that gave it (None: no rule matched), and in words why."""

    allowed: bool
    rule: Rule | None
    why: str


class _Applied(Struct, frozen=True):
    """A rule for one client: `filters` are filled in; None is every topic. `on_events` are those that may allow topics
    below `EVENTS_PREFIX`."""

    rule: Rule
    filters: tuple[str, ...] | None
    on_events: tuple[str, ...] = ()

    def _filters_on(self, topic: str) -> tuple[str, ...] | None:
        if self.rule.allow and topic.startswith(EVENTS_PREFIX):
            return self.on_events
        return self.filters

    def matches(self, topic: str) -> bool:
        if self.rule.topic_regex is not None:
            return self.rule.topic_regex.matches(topic, if_too_long=not self.rule.allow)
        filters = self._filters_on(topic)
        return filters is None or any(matches(own, topic) for own in filters)

    def covers(self, topic_filter: str) -> bool:
        """Whether it is about every topic that the filter matches. What a regular expression covers nobody can tell,
        unless the filter is a topic."""
        if self.rule.topic_regex is not None:
            is_topic = "+" not in topic_filter and "#" not in topic_filter
            return is_topic and self.matches(topic_filter)
        filters = self._filters_on(topic_filter)
        return filters is None or any(covers(own, topic_filter) for own in filters)


class RuleSet:
    """Rules in the order in which they are asked; `no_match_allows` is the answer when none matches.

    Two answers differ when none matches: CONNECT is allowed unless some rule is about it, TAKEOVER is denied.
    """

    def __init__(self, rules: Iterable[Rule], *, no_match_allows: bool) -> None:
        self.rules = tuple(rules)
        self.no_match_allows = no_match_allows
        self._of_user: dict[str, list[int]] = {}
        self._of_client_id: dict[str, list[int]] = {}
        self._others: list[int] = []
        self._guards_client_ids = any(
            Action.CONNECT in rule.actions and rule.elsewhere is None for rule in self.rules
        )
        for index, rule in enumerate(self.rules):
            for names, index_of in ((rule.users, self._of_user), (rule.client_ids, self._of_client_id)):
                if names is not None and names.is_exact:
                    for name in names.exact:
                        index_of.setdefault(name, []).append(index)
                    break
            else:
                self._others.append(index)

    def no_match(self, action: Action, topic: str) -> bool:
        """The answer when no rule matches."""
        if action is Action.TAKEOVER:
            return False
        if action is Action.CONNECT and not self._guards_client_ids:
            return True
        return self.no_match_allows and not topic.startswith(GUARDED)

    def about(self, principal: Principal) -> list[Rule]:
        """The rules that concern a client, in their order."""
        found = sorted(
            [
                *self._of_user.get(principal.user, ()),
                *self._of_client_id.get(principal.client_id, ()),
                *self._others,
            ]
        )
        return [rule for rule in map(self.rules.__getitem__, found) if rule.is_about(principal)]

    def decide(self, principal: Principal, action: Action, topic: str) -> Decision:
        """What holds, and why. `topic` is a filter when the action is SUBSCRIBE."""
        return Permissions(self, principal, 0).decide(action, topic)


class Permissions:
    """What one client may do. Decisions are remembered, `cached_topics_max` at most for each action."""

    __slots__ = ("_applied", "_cached_topics_max", "_consume", "_publish", "_receive", "principal", "rules")

    def __init__(self, rules: RuleSet, principal: Principal, cached_topics_max: int) -> None:
        self.principal = principal
        self.rules = rules
        self._cached_topics_max = cached_topics_max
        self._applied: list[_Applied] | None = None
        self._publish: dict[str, bool] | None = None
        self._receive: dict[str, bool] | None = None
        self._consume: dict[str, bool] | None = None

    def may_publish(self, topic: str) -> bool:
        """`topic` is a valid topic name."""
        known = self._publish
        if known is None:
            known = self._publish = {}
        answer = known.get(topic)
        return self._find(known, Action.PUBLISH, topic) if answer is None else answer

    def may_receive(self, topic: str) -> bool:
        """`topic` is a valid topic name."""
        known = self._receive
        if known is None:
            known = self._receive = {}
        answer = known.get(topic)
        return self._find(known, Action.RECEIVE, topic) if answer is None else answer

    def may_subscribe(self, topic_filter: str) -> bool:
        """`topic_filter` is a valid filter, without `$share/<group>/`."""
        return self._answer(Action.SUBSCRIBE, topic_filter)

    def may_consume(self, topic: str) -> bool:
        """Whether it may be given messages of a durable queue, whose topic this is: it has to settle them too."""
        known = self._consume
        if known is None:
            known = self._consume = {}
        answer = known.get(topic)
        if answer is None:
            answer = self.may_receive(topic) and self.may_subscribe(topic)
            self._remember(known, topic, answer)
        return answer

    def may_create(self, topic: str) -> bool:
        """`topic` is that of a queue which is not there."""
        return self._answer(Action.CREATE, topic)

    def may_connect(self) -> bool:
        """Whether it may use its client id."""
        return self._answer(Action.CONNECT, "")

    def elsewhere(self) -> Elsewhere | None:
        """The server to which it is sent when it connects; None when it may be here."""
        rule = self._rule(Action.CONNECT, "")
        return rule.elsewhere if rule is not None else None

    def may_take_over(self) -> bool:
        """Whether it may come for a session of its client id that belongs to another user."""
        return self._answer(Action.TAKEOVER, "")

    def _find(self, known: dict[str, bool], action: Action, topic: str) -> bool:
        answer = self._answer(action, topic)
        self._remember(known, topic, answer)
        return answer

    def _remember(self, known: dict[str, bool], topic: str, answer: bool) -> None:
        if self._cached_topics_max and len(topic) <= CACHED_TOPIC_CHARACTERS_MAX:
            if len(known) >= self._cached_topics_max:
                known.clear()
            known[topic] = answer

    def _rule(self, action: Action, topic: str) -> Rule | None:
        """The first rule that is about it."""
        for applied in self._own():
            rule = applied.rule
            if action not in rule.actions or not rule.opens(topic):
                continue
            if applied.covers(topic) if action is Action.SUBSCRIBE else applied.matches(topic):
                return rule
        return None

    def _answer(self, action: Action, topic: str) -> bool:
        rule = self._rule(action, topic)
        return self.rules.no_match(action, topic) if rule is None else rule.allow

    def _own(self) -> list[_Applied]:
        applied = self._applied
        if applied is None:
            applied = self._applied = [
                one for rule in self.rules.about(self.principal) if (one := _apply(rule, self.principal))
            ]
        return applied

    def decide(self, action: Action, topic: str) -> Decision:
        """The same answers, with the reason."""
        rule = self._rule(action, topic)
        if rule is not None:
            return Decision(rule.allow, rule, f"{rule.place}: {rule}")
        for prefix in GUARDED:
            if topic.startswith(prefix):
                why = f"no rule has `topics` that name {prefix}, and those alone allow it"
                return Decision(False, None, why)
        allowed = self.rules.no_match(action, topic)
        word = "allowed" if allowed else "denied"
        if action in ON_CLIENT_IDS and allowed is not self.rules.no_match_allows:
            return Decision(allowed, None, f"no rule about {action} matches, and without one it is {word}")
        why = f"no rule matches, and what no rule matches is {word}"
        if action is Action.SUBSCRIBE:
            parts = [str(rule.place) for rule in self._partly(topic)]
            if parts:
                why = f"no rule covers the whole of {topic} ({', '.join(parts)}: a part of it), and that is {word}"
        return Decision(allowed, None, why)

    def _partly(self, topic_filter: str) -> list[Rule]:
        return [
            applied.rule
            for applied in self._own()
            if Action.SUBSCRIBE in applied.rule.actions
            and applied.rule.allow is not self.rules.no_match_allows
            and any(overlap(own, topic_filter) for own in applied.filters or ())
        ]


def _apply(rule: Rule, principal: Principal) -> _Applied | None:
    """The rule for a client that it is about; None when no topic is left of it.

    A deny whose %u or %c cannot be filled in is about all that they could stand for; %u is nobody's for an anonymous
    client.
    """
    if rule.filters is None:
        return _Applied(rule, None)
    filters: list[str] = []
    on_events: list[str] = []
    for text in rule.filters:
        filled: str | None = text
        if rule.fills_in and has_placeholder(text):
            filled = fill_in(text, principal.user, principal.client_id)
        if filled is not None:
            filters.append(filled)
            if text.startswith(EVENTS_PREFIX):  # as it is written: no client's name leads there
                on_events.append(filled)
        elif not rule.allow and (principal.user or "%u" not in text):
            wide = widest(text)
            if wide is None:
                return _Applied(rule, None)
            filters.append(wide)
    return _Applied(rule, tuple(filters), tuple(on_events)) if filters else None
