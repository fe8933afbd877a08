"""`embermq acl`: what the rules say, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.admin.access_operations import CHECK_RULES, LIST_RULES
from embermq.admin.access_values import Checked, RulesView
from embermq.app.control import NoAnswer
from embermq.app.errors import UserError
from embermq.cli.control import broker_elsewhere, running_broker
from embermq.cli.options import (
    AsJson,
    Assignments,
    CaFile,
    ConfigFile,
    DataDir,
    ProfileName,
    TokenOf,
    Url,
    configuration,
)
from embermq.cli.terminal import Told, group, shown, tell

if TYPE_CHECKING:
    from embermq.access.authorization.rule_set import RuleSet
    from embermq.access.authorization.rules import Action

EXIT_DENIED = 1

app = group("Access rules: who may publish and subscribe where.")
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
MayPublish = Annotated[str | None, typer.Option("--publish", metavar="TOPIC", help="May it publish here?")]
MaySubscribe = Annotated[
    str | None, typer.Option("--subscribe", metavar="FILTER", help="May it subscribe to this?")
]
MayReceive = Annotated[
    str | None, typer.Option("--receive", metavar="TOPIC", help="May it receive from here?")
]
MayCreate = Annotated[str | None, typer.Option("--create", metavar="TOPIC", help="May it make this queue?")]
OwnerName = Annotated[
    str | None,
    typer.Option("--owner", metavar="NAME", help="The session's owner; else the running broker is asked."),
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
    publish: MayPublish = None,
    subscribe: MaySubscribe = None,
    receive: MayReceive = None,
    create: MayCreate = None,
    connect: Annotated[
        bool,
        typer.Option("--connect", help="May it connect with its client id and take over its session?"),
    ] = False,
    owner: OwnerName = None,
    rules: RulesFile = None,
    mosquitto_acl: AclFile = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    url: Url = None,
    profile: ProfileName = None,
    token_file: TokenOf = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a client may do something, by which rule, and why. Exit code 0: allowed, 1: denied."""
    from embermq.access.authorization.rules import Action, Principal
    from embermq.app.authorization import may_connect

    about: dict[str, str | None] = {}
    if connect:
        if not client_id or (publish, subscribe, receive, create) != (None, None, None, None):
            raise typer.BadParameter("--connect goes with --client-id, and with no other question")
        action, topic, about = Action.CONNECT, "", {"client_id": client_id}
    else:
        action, topic = _asked(publish, subscribe, receive, create)
    there = broker_elsewhere(profile, url, token_file, ca_file)
    if there is not None:
        if (rules, mosquitto_acl, owner) != (None, None, None):
            raise typer.BadParameter(
                "the broker is asked with its own rules and sessions: without --rules, --mosquitto-acl and --owner"
            )
        asked = {"user": user, "client_id": client_id, "certificate": certificate}
        with there as broker:
            answer = broker.ask(CHECK_RULES, action=action.value, topic=topic, **asked)
        _print_answer(msgspec.convert(answer, Checked), action, topic, about, as_json=as_json)
        return
    principal = Principal(user, client_id, certificate)
    rule_set = _rules(rules, mosquitto_acl, config, assignments)
    if connect:
        if owner is None:
            owner, note = _owner(client_id, data_dir, config, assignments)
        else:
            note = f"its session belongs to {shown(owner)}"
        decision, about["owner"] = may_connect(rule_set, principal, owner, note), owner
    else:
        decision = rule_set.decide(principal, action, topic)
    rule = str(decision.rule.place) if decision.rule is not None else None
    found = Checked(allowed=decision.allowed, rule=rule, why=decision.why)
    _print_answer(found, action, topic, about, as_json=as_json)


def _print_answer(
    checked: Checked, action: Action, topic: str, about: dict[str, str | None], *, as_json: bool
) -> None:
    """`about` is what else belongs to the question; it holds the client id when there is no topic."""
    found = {
        "allowed": checked.allowed,
        "action": str(action),
        "topic": topic,
        "rule": checked.rule,
        "why": checked.why,
    }
    word = "allowed" if checked.allowed else "denied"
    lines = [f"{word}: {action} {topic or shown(about['client_id'] or '')}", f"  {checked.why}"]
    tell(Told(found | about, lines, 0 if checked.allowed else EXIT_DENIED), as_json=as_json)


def _owner(
    client_id: str, data_dir: str | None, config: Path | None, assignments: list[str] | None
) -> tuple[str, str]:
    """To whom the session of the client id belongs, "" for nobody, and that in words."""
    from embermq.admin.operations import GET_CLIENT

    try:
        with running_broker(data_dir, config, assignments) as broker:
            found = broker.ask(GET_CLIENT, client_id=client_id)
    except NoAnswer as error:
        return "", f"whose session it would have has not been asked: {error}"
    except UserError:
        return "", "there is no session of this client id"
    username = found["session"]["username"]
    return username, f"its session belongs to {shown(username) if username else 'no user'}"


@app.command("list")
def list_all(
    *,
    rules: RulesFile = None,
    mosquitto_acl: AclFile = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    url: Url = None,
    profile: ProfileName = None,
    token_file: TokenOf = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Show every rule in the order in which they are asked."""
    from embermq.app.authorization import rule_document

    there = broker_elsewhere(profile, url, token_file, ca_file)
    if there is None:
        rule_set = _rules(rules, mosquitto_acl, config, assignments)
        shown_rules = [rule_document(rule) for rule in rule_set.rules]
        lines, allows = [f"{rule.place}: {rule}" for rule in rule_set.rules], rule_set.no_match_allows
    else:
        if (rules, mosquitto_acl) != (None, None):
            raise typer.BadParameter(
                "the broker is asked for its own rules: without --rules and --mosquitto-acl"
            )
        with there as broker:
            view = msgspec.convert(broker.ask(LIST_RULES), RulesView)
        shown_rules = [msgspec.structs.asdict(rule) for rule in view.rules]
        lines, allows = [f"{rule['place']}: {rule.pop('told')}" for rule in shown_rules], view.no_match_allows
    lines.append(f"what no rule matches is {'allowed' if allows else 'denied'}")
    tell(Told({"rules": shown_rules, "no_match_allows": allows}, lines), as_json=as_json)


def _asked(
    publish: str | None, subscribe: str | None, receive: str | None, create: str | None
) -> tuple[Action, str]:
    """The one thing that is asked about, and its topic; of a shared subscription its filter."""
    from embermq.access.authorization.rules import Action
    from embermq.app.authorization import topic_asked
    from embermq.mqtt.topics.errors import TopicError

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
        raise typer.BadParameter("say one of --publish, --subscribe, --receive, --create and --connect")
    action, topic = given[0]
    try:
        return action, topic_asked(action, topic)
    except TopicError as error:
        raise typer.BadParameter(f"--{action}: {error.message}") from error


def _rules(
    rules: Path | None, mosquitto_acl: Path | None, config: Path | None, assignments: list[str] | None
) -> RuleSet:
    """Files that are named by an option are asked instead of all those in the settings."""
    from embermq.access.authorization.rule_set import RuleSet
    from embermq.app.authorization import RuleFiles

    settings = configuration(config, assignments, None).settings.authorization
    if rules is not None or mosquitto_acl is not None:
        settings = msgspec.structs.replace(
            settings, rules=str(rules or ""), mosquitto_acl=str(mosquitto_acl or "")
        )
    found = RuleFiles(settings).read()
    return RuleSet((), no_match_allows=True) if found is None else found
