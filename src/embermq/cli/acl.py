"""`embermq acl`: what the rules say, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.cli.options import AsJson, Assignments, ConfigFile, configuration

if TYPE_CHECKING:
    from embermq.authorization.rule_set import RuleSet
    from embermq.authorization.rules import Action, Rule

EXIT_DENIED = 1

app = typer.Typer(
    help="Rules: who may publish and subscribe where.", no_args_is_help=True, rich_markup_mode=None
)
RulesFile = Annotated[
    Path | None,
    typer.Option("--rules", metavar="FILE", help="Rules in TOML, instead of authorization.rules."),
]
AclFile = Annotated[
    Path | None,
    typer.Option(
        "--mosquitto-acl", metavar="FILE", help="Mosquitto's ACL, instead of authorization.mosquitto_acl."
    ),
]


@app.command("check")
def check(
    *,
    user: Annotated[
        str, typer.Option("--user", metavar="NAME", help="The user name; without it an anonymous client.")
    ] = "",
    client_id: Annotated[str, typer.Option("--client-id", metavar="ID", help="The client's id.")] = "",
    certificate: Annotated[
        str,
        typer.Option(
            "--certificate", metavar="SUBJECT", help="Subject of its certificate, such as CN=gate-1,O=Works."
        ),
    ] = "",
    publish: Annotated[
        str | None, typer.Option("--publish", metavar="TOPIC", help="May it publish here?")
    ] = None,
    subscribe: Annotated[
        str | None, typer.Option("--subscribe", metavar="FILTER", help="May it subscribe to this?")
    ] = None,
    receive: Annotated[
        str | None, typer.Option("--receive", metavar="TOPIC", help="May it receive from here?")
    ] = None,
    create: Annotated[
        str | None, typer.Option("--create", metavar="TOPIC", help="May it make this queue?")
    ] = None,
    rules: RulesFile = None,
    mosquitto_acl: AclFile = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a client may do something, by which rule, and why. Exit code 0: allowed, 1: denied."""
    from embermq.authorization.rules import Principal

    action, topic = _asked(publish, subscribe, receive, create)
    rule_set = _rules(rules, mosquitto_acl, config, assignments)
    decision = rule_set.decide(Principal(user, client_id, certificate), action, topic)
    word = "allowed" if decision.allowed else "denied"
    if as_json:
        found = {
            "allowed": decision.allowed,
            "action": str(action),
            "topic": topic,
            "rule": str(decision.rule.place) if decision.rule is not None else None,
            "why": decision.why,
        }
        print(json.dumps(found, indent=2))
    else:
        print(f"{word}: {action} {topic}\n  {decision.why}")
    raise typer.Exit(0 if decision.allowed else EXIT_DENIED)


@app.command("list")
def list_all(
    *,
    rules: RulesFile = None,
    mosquitto_acl: AclFile = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show every rule in the order in which they are asked."""
    rule_set = _rules(rules, mosquitto_acl, config, assignments)
    if as_json:
        found = {"rules": list(map(_document, rule_set.rules)), "no_match_allows": rule_set.no_match_allows}
        print(json.dumps(found, indent=2))
        return
    for rule in rule_set.rules:
        print(f"{rule.place}: {rule}")
    print(f"what no rule matches is {'allowed' if rule_set.no_match_allows else 'denied'}")


def _document(rule: Rule) -> dict[str, object]:
    return {
        "place": str(rule.place),
        "allow": rule.allow,
        "actions": sorted(rule.actions),
        "anonymous": rule.anonymous,
        "user": str(rule.users) if rule.users is not None else None,
        "client_id": str(rule.client_ids) if rule.client_ids is not None else None,
        "certificate": str(rule.certificates) if rule.certificates is not None else None,
        "topics": rule.filters,
        "topic_regex": rule.topic_regex.text if rule.topic_regex is not None else None,
    }


def _asked(
    publish: str | None, subscribe: str | None, receive: str | None, create: str | None
) -> tuple[Action, str]:
    """The one thing that is asked about, and its topic; of a shared subscription its filter."""
    from embermq.authorization.rules import Action
    from embermq.topics.errors import TopicError
    from embermq.topics.names import parse_shared, validate_filter, validate_topic

    given = [
        (action, topic)
        for action, topic in (
            (Action.PUBLISH, publish),
            (Action.SUBSCRIBE, subscribe),
            (Action.RECEIVE, receive),
            (Action.CREATE, create),
        )
        if topic is not None
    ]
    if len(given) != 1:
        raise typer.BadParameter("say one of --publish, --subscribe, --receive and --create")
    action, topic = given[0]
    try:
        if action is not Action.SUBSCRIBE:
            validate_topic(topic)
            return action, topic
        validate_filter(topic)
        shared = parse_shared(topic)
    except TopicError as error:
        raise typer.BadParameter(f"--{action}: {error.message}") from error
    return action, shared.topic_filter if shared is not None else topic


def _rules(
    rules: Path | None, mosquitto_acl: Path | None, config: Path | None, assignments: list[str] | None
) -> RuleSet:
    """Files that are named by an option are asked instead of all those in the settings."""
    from embermq.app.authorization import RuleFiles
    from embermq.authorization.rule_set import RuleSet

    settings = configuration(config, assignments, None).settings.authorization
    if rules is not None or mosquitto_acl is not None:
        settings = msgspec.structs.replace(
            settings, rules=str(rules or ""), mosquitto_acl=str(mosquitto_acl or "")
        )
    found = RuleFiles(settings).read()
    return RuleSet((), no_match_allows=True) if found is None else found
