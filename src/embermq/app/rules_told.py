"""What rules say, in values that people and programs are shown."""

from __future__ import annotations

from embermq.access.authorization.rule_set import Decision, RuleSet
from embermq.access.authorization.rules import Action, Principal, Rule


def rule_document(rule: Rule) -> dict[str, object]:
    """A rule, field by field; None for what does not matter to it."""
    elsewhere = rule.elsewhere
    return {
        "place": str(rule.place),
        "allow": rule.allow,
        "actions": sorted(rule.actions),
        "use_server": elsewhere.server if elsewhere is not None and not elsewhere.moved else None,
        "moved_to": elsewhere.server if elsewhere is not None and elsewhere.moved else None,
        "anonymous": rule.anonymous,
        "user": str(rule.users) if rule.users is not None else None,
        "client_id": str(rule.client_ids) if rule.client_ids is not None else None,
        "certificate": str(rule.certificates) if rule.certificates is not None else None,
        "topics": rule.filters,
        "topic_regex": rule.topic_regex.text if rule.topic_regex is not None else None,
    }


def may_connect(rule_set: RuleSet, principal: Principal, owner: str, note: str) -> Decision:
    """By the rules about client ids, and by whose session there is; `owner` is "" for nobody, `note` says who that
    is."""
    decision = rule_set.decide(principal, Action.CONNECT, "")
    if decision.allowed and owner not in ("", principal.user):
        takeover = rule_set.decide(principal, Action.TAKEOVER, "")
        return Decision(takeover.allowed, takeover.rule, f"{note}\n  {takeover.why}")
    return Decision(decision.allowed, decision.rule, f"{decision.why}\n  {note}")


def topic_asked(action: Action, topic: str) -> str:
    """The topic, or the filter of SUBSCRIBE without its group. Raises TopicError for one that cannot be."""
    from embermq.mqtt.topics.names import parse_shared, validate_filter, validate_topic

    if action is not Action.SUBSCRIBE:
        validate_topic(topic)
        return topic
    validate_filter(topic)
    shared = parse_shared(topic)
    return shared.topic_filter if shared is not None else topic
