"""`embermq acl`: the answer, the reason, the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embermq.cli.main import main

RULES = """\
[[rule]]
deny = "receive"
topics = "secret/#"

[[rule]]
allow = ["publish", "read"]
user = "meter-*"
topics = ["meters/%u/#"]

[[rule]]
allow = "read"
certificate = "CN=display,*"
client_id = "d1"
topics = ["meters/#"]
"""
METER = ["--user", "meter-1"]
DISPLAY = ["--certificate", "CN=display,O=Works", "--client-id", "d1"]


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return str(path)


@pytest.mark.parametrize(
    ("asked", "code", "told"),
    [
        (
            [*METER, "--publish", "meters/meter-1/power"],
            0,
            (
                "allowed: publish meters/meter-1/power\n"
                "  {rules}:5: allow publish, subscribe, receive for user 'meter-*' on meters/%u/#\n"
            ),
        ),
        (
            [*METER, "--publish", "meters/meter-2/power"],
            1,
            "denied: publish meters/meter-2/power\n  no rule matches, and what no rule matches is denied\n",
        ),
        (
            [*DISPLAY, "--subscribe", "$share/g/meters/+/power"],
            0,
            (
                "allowed: subscribe meters/+/power\n  {rules}:10: allow subscribe, receive for client id 'd1'"
                " for certificate 'CN=display,*' on meters/#\n"
            ),
        ),
        (
            [*DISPLAY, "--subscribe", "#"],
            1,
            (
                "denied: subscribe #\n"
                "  no rule covers the whole of # ({rules}:10: a part of it), and that is denied\n"
            ),
        ),
        (
            ["--receive", "secret/x"],
            1,
            "denied: receive secret/x\n  {rules}:1: deny receive on secret/#\n",
        ),
    ],
)
def test_check(
    rules: str, asked: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["acl", "check", "--rules", rules, *asked]) == code
    assert capsys.readouterr().out == told.format(rules=rules)


def test_check_for_machines(rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["acl", "check", "--json", "--set", f"authorization.rules={rules}", "--receive", "secret/x"])
        == 1
    )
    assert json.loads(capsys.readouterr().out) == {
        "allowed": False,
        "action": "receive",
        "topic": "secret/x",
        "rule": f"{rules}:1",
        "why": f"{rules}:1: deny receive on secret/#",
    }


def test_without_rules_everything_is_allowed_and_with_an_empty_file_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["acl", "check", "--publish", "x"]) == 0
    (tmp_path / "empty").write_text("")
    for option in ("--rules", "--mosquitto-acl"):
        assert main(["acl", "check", option, str(tmp_path / "empty"), "--publish", "x"]) == 1
    assert "no rule matches" in capsys.readouterr().out


def test_the_option_stands_for_the_settings(rules: str, tmp_path: Path) -> None:
    """A new file is tried before it is put in place, without what is there now."""
    acl = tmp_path / "acl"
    acl.write_text("pattern readwrite #\n")
    settings = ["--set", f"authorization.mosquitto_acl={acl}"]
    assert main(["acl", "check", *settings, "--publish", "x"]) == 0
    assert main(["acl", "check", *settings, "--rules", rules, "--publish", "x"]) == 1
    assert main(["acl", "check", "--mosquitto-acl", str(acl), "--publish", "x"]) == 0
    allow = ["--set", "authorization.no_match=allow", "--rules", rules]
    assert main(["acl", "check", *allow, "--publish", "x"]) == 0


def test_list(rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acl", "list", "--rules", rules]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines[:-1]] == [f"{rules}:{line}" for line in (1, 5, 10)]
    assert lines[-1] == "what no rule matches is denied"
    assert main(["acl", "list", "--rules", rules, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["no_match_allows"] is False
    assert document["rules"][2] == {
        "place": f"{rules}:10",
        "allow": True,
        "actions": ["receive", "subscribe"],
        "use_server": None,
        "moved_to": None,
        "anonymous": None,
        "user": None,
        "client_id": "'d1'",
        "certificate": "'CN=display,*'",
        "topics": ["meters/#"],
        "topic_regex": None,
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "say one of --publish, --subscribe, --receive, --create and --connect"),
        (
            ["--publish", "a", "--receive", "b"],
            "say one of --publish, --subscribe, --receive, --create and --connect",
        ),
        (["--connect"], "--connect goes with --client-id, and with no other question"),
        (
            ["--connect", "--client-id", "c", "--publish", "a"],
            "--connect goes with --client-id, and with no other",
        ),
        (["--publish", "a/+"], "--publish: topic name 'a/+' contains a wildcard"),
        (["--receive", ""], "--receive: topic name is empty"),
        (["--subscribe", "a/#/b"], "--subscribe: topic filter 'a/#/b': '#' is not the last level"),
        (
            ["--publish", "a", "--rules", "/nowhere"],
            "authorization.rules: cannot read /nowhere: No such file",
        ),
    ],
)
def test_mistakes_are_not_answers(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 is an answer, so these have another one."""
    assert main(["acl", "check", *words]) == 2
    said = capsys.readouterr()
    assert told in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


CLIENT_IDS = """\
[[rule]]
allow = "takeover"
user = "bob"

[[rule]]
allow = "connect"
client_id = "%u-*"
[[rule]]
allow = "connect"
user = ["bob", "eve"]
"""
NO_RULE = "no rule matches, and what no rule matches is denied"
OWN = "{rules}:5: allow connect for client id '%u-*'"


@pytest.mark.parametrize(
    ("user", "owner", "told"),
    [
        ("ann", "ann", f"allowed: connect ann-1\n  {OWN}\n  its session belongs to ann\n"),
        (
            "bob",
            "ann",
            "allowed: connect ann-1\n  its session belongs to ann\n  {rules}:1: allow takeover for user 'bob'\n",
        ),
        ("eve", "ann", f"denied: connect ann-1\n  its session belongs to ann\n  {NO_RULE}\n"),
        ("dan", "dan", f"denied: connect ann-1\n  {NO_RULE}\n  its session belongs to dan\n"),
    ],
)
def test_connecting_with_a_client_id(
    user: str, owner: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = 0 if told.startswith("allowed") else 1
    path = tmp_path / "rules.toml"
    path.write_text(CLIENT_IDS)
    words = ["--rules", str(path), "--connect", "--user", user, "--client-id", "ann-1", "--owner", owner]
    assert main(["acl", "check", *words]) == code
    assert capsys.readouterr().out == told.format(rules=path)
    assert main(["acl", "check", *words, "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert (found["allowed"], found["client_id"], found["owner"]) == (not code, "ann-1", owner)


def test_without_a_broker_nobody_knows_whose_session_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--connect", "--user", "ann", "--client-id", "c", "--data-dir", str(tmp_path)]
    assert main(["acl", "check", *words]) == 0
    told = capsys.readouterr().out
    assert "no rule about connect matches" not in told
    assert f"whose session it would have has not been asked: no broker is running on {tmp_path}" in told
