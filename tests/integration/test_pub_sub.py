"""`embermq pub` and `embermq sub` and a broker that is running."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

import httpx
import pytest
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.certificates import Authority
from tests.support.forked_program import run_program
from tests.support.users import PASSWORD, add_users
from tests.support.waiting import wait_until

TIMEOUT_S = 90
Done = subprocess.CompletedProcess[str]


def typed(broker: BrokerProcess, command: str, *words: str | Path, stdin: str = "", **variables: str) -> Done:
    where = ("-h", "127.0.0.1", "-p", str(broker.port))
    return run_program(command, *where, *words, stdin=stdin, environment=variables, timeout_s=TIMEOUT_S)


def done(one: Done) -> str:
    """What it printed, when all went well."""
    assert one.returncode == 0, one.stderr
    assert not one.stderr
    return one.stdout


def test_what_is_retained_comes_with_its_properties(broker: BrokerProcess, name: str, tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    payload.write_bytes(b"\xff\x00")
    given = ("--content-type", "text/plain", "--user-property", "unit=C=x", "--expiry", "3600")
    reply = ("--response-topic", "answers", "--correlation-data", "7")
    done(typed(broker, "pub", "-t", f"{name}/text", "-m", "21.5 °", "-r", *given, *reply))
    done(typed(broker, "pub", "-t", f"{name}/bytes", "-f", payload, "-r", "-q", "0"))
    lines = done(typed(broker, "sub", "-t", f"{name}/#", "-C", "2", "--json", "-q", "2")).splitlines()
    found = {each["topic"].rpartition("/")[2]: each for each in map(json.loads, lines)}
    assert found["bytes"]["payload_base64"] == "/wA=" and "properties" not in found["bytes"]
    text = found["text"]
    assert text.pop("time") and 0 < text.pop("expiry_s") <= 3_600
    assert text == {
        "topic": f"{name}/text",
        "payload": "21.5 °",
        "qos": 1,
        "retain": True,
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation": "7",
        "properties": [["unit", "C=x"]],
    }
    assert done(typed(broker, "sub", "-t", f"{name}/text", "-C", "1", "-v")) == f"{name}/text 21.5 °\n"
    done(typed(broker, "pub", "-t", f"{name}/text", "-n", "-r"))
    none = typed(broker, "sub", "-t", f"{name}/text", "-C", "1", "-W", "1")
    assert (none.returncode, none.stderr) == (1, "embermq: 0 of 1 messages in 1 s\n")


def test_lines_go_to_a_queue_and_are_settled_as_they_are_printed(broker: BrokerProcess, name: str) -> None:
    queue = f"$queue/{name}"
    lines = [f"line {number}" for number in range(20)]
    one_key = ("--partition-key", "k")
    done(typed(broker, "pub", "-t", queue, "-l", *one_key, stdin="\r\n".join(lines) + "\n"))
    seen = done(typed(broker, "sub", "-t", queue, "--no-ack", "--start", "earliest", "-C", "1"))
    assert seen.splitlines() == lines[:1]
    first = done(typed(broker, "sub", "-t", queue, "-C", "5"))
    rest = done(typed(broker, "sub", "-t", queue, "-C", "15", "--json"))
    assert first.splitlines() == lines[:5]
    told = [json.loads(line) for line in rest.splitlines()]
    assert [(each["payload"], each["key"]) for each in told] == [(line, "k") for line in lines[5:]]
    assert {each["group"] for each in told} == {"embermq"} and len({each["id"] for each in told}) == 15
    left = typed(broker, "sub", "-t", queue, "-C", "1", "-W", "1")
    assert left.returncode == 1


def test_a_shared_subscription_and_a_plain_one_get_what_is_published_live(
    broker: BrokerProcess, name: str
) -> None:
    found: list[Done] = []
    words = ("-t", f"$share/g/{name}/a", "-t", f"{name}/b", "-C", "2", "-N", "-i", name)
    waiting = threading.Thread(target=lambda: found.append(typed(broker, "sub", *words)))
    waiting.start()
    shown = f"http://127.0.0.1:{broker.http_port}/api/v1/clients/{name}/subscriptions"
    wait_until(lambda: len(httpx.get(shown).json()) == 2 or bool(found), TIMEOUT_S, "its subscriptions")
    done(typed(broker, "pub", "-t", f"{name}/a", "-m", "one"))
    done(typed(broker, "pub", "-t", f"{name}/b", "-s", stdin="two\n"))
    waiting.join()
    assert sorted(done(found[0])) == sorted("onetwo\n")


def test_a_kept_session_goes_on_where_it_was(broker: BrokerProcess, name: str) -> None:
    kept = ("sub", "-t", f"{name}/#", "-c", "-i", name, "-q", "2")
    done(typed(broker, "pub", "-t", f"{name}/old", "-m", "old", "-r", "-q", "2"))
    assert done(typed(broker, *kept, "-C", "1")) == "old\n"
    lines = [f"line {number}" for number in range(6)]
    done(typed(broker, "pub", "-t", f"{name}/a", "-l", "-q", "2", stdin="\n".join(lines)))
    done(typed(broker, "pub", "-t", f"{name}/a", "-m", "at least once"))
    assert done(typed(broker, *kept, "-C", "2")).splitlines() == lines[:2]
    rest = done(typed(broker, *kept, "-C", "5", "--json")).splitlines()
    told = [json.loads(line) for line in rest]
    assert [(each["payload"], each["qos"]) for each in told] == [
        *((line, 2) for line in lines[2:]),
        ("at least once", 1),
    ]
    left = typed(broker, *kept, "-C", "1", "-W", "1")
    assert (left.returncode, left.stderr) == (1, "embermq: 0 of 1 messages in 1 s\n")


def test_qos_2_is_published_once_with_its_properties_or_refused_with_a_reason(
    broker: BrokerProcess, name: str
) -> None:
    given = ("--content-type", "text/plain", "--user-property", "a=b", "-r")
    done(typed(broker, "pub", "-t", name, "-m", "x", "-q", "2", *given))
    line = done(typed(broker, "sub", "-t", name, "-C", "1", "-q", "2", "--json"))
    found = json.loads(line)
    assert (found["qos"], found["content_type"], found["properties"]) == (2, "text/plain", [["a", "b"]])
    refused = typed(broker, "pub", "-t", "$SYS/x", "-m", "x", "-q", "2")
    assert refused.returncode == 1 and refused.stderr.startswith("embermq: $SYS/x: refused with 0x90")
    wildcard = typed(broker, "pub", "-t", "a/#", "-m", "x", "-q", "2")
    assert wildcard.returncode == 2 and "a/#" in wildcard.stderr
    away = run_program("sub", "-p", str(free_port()), "-h", "127.0.0.1", "-t", "a", "-c", "-i", name)
    assert away.returncode == 1 and "Connection refused" in away.stderr
    for one in (refused, wildcard, away):
        assert one.stderr.startswith("embermq: ") and one.stderr.count("\n") == 1, one.stderr
    shown = httpx.get(f"http://127.0.0.1:{broker.http_port}/api/v1/clients?match=embermq-*&limit=100").json()
    assert not [each for each in shown if not each["connected"]], "no session of pub is left"


def test_as_a_user_over_tls(own_broker: BrokerProcess, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    server = authority.server()
    port = free_port()
    own_broker.settings |= {
        "listeners.mqtts": f"127.0.0.1:{port}", "tls.cert": server, "tls.key": server,
    }  # fmt: skip
    add_users(own_broker.data_dir, "ann")
    own_broker.start()
    secret = tmp_path / "password"
    secret.write_text(f"\ufeff{PASSWORD.decode()}\n")
    over_tls = ("-p", str(port), "--cafile", authority.certificate, "-t", "t", "-u", "ann")
    done(run_program("pub", *over_tls, "-m", "x", "--password-file", secret, timeout_s=TIMEOUT_S))
    refused = typed(own_broker, "pub", "-t", "t", "-m", "x", "-u", "ann", MQTT_PASSWORD="wrong")
    assert refused.returncode == 1
    assert "CONNECT was refused: Not authorized (0x87)" in refused.stderr or "0x86" in refused.stderr
    strange = run_program("pub", "-p", str(port), "--tls", "-t", "t", "-m", "x", timeout_s=TIMEOUT_S)
    assert strange.returncode == 1 and "certificate verify failed" in strange.stderr
    for one in (refused, strange):
        assert one.stderr.startswith("embermq: ") and one.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("pub", "-t", "a"), "say once what to publish"),
        (("pub", "-t", "a", "-m", "x", "-n"), "say once what to publish"),
        (("pub", "-t", "a", "-m", "x", "--user-property", "x"), "'x' is no user property: NAME=VALUE"),
        (("pub", "-t", "a", "-m", "x", "--delay", "1"), "--delay is for queues, and 'a' is none"),
        (("pub", "-t", "a", "-m", "x", "-P", "x"), "a password needs a user name"),
        (("pub", "-t", "a", "-m", "x", "--key", "x"), "--key goes with --cert"),
        (("sub", "-t", "a", "-t", "a"), "-t names the same twice"),
        (("sub", "-t", "a", "--group", "g"), "are for queues"),
        (("sub", "-t", "a", "-c"), "-c keeps the session of a client id, -i ID"),
        (("sub", "-t", "$queue/a", "-c", "-i", "x"), "queues have --group for that"),
        (("sub", "-t", "a", "-x", "5"), "-x goes with -c"),
    ],
)
def test_what_cannot_be_is_said_before_anybody_is_asked(words: tuple[str, ...], told: str) -> None:
    wrong = run_program(*words)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert told in wrong.stderr and wrong.stderr.startswith("embermq: ") and wrong.stderr.count("\n") == 1


def test_what_the_broker_or_the_network_refuses_is_one_line(broker: BrokerProcess, tmp_path: Path) -> None:
    away = run_program("pub", "-h", "127.0.0.1", "-p", str(free_port()), "-t", "a", "-m", "x")
    assert away.returncode == 1 and "Connection refused" in away.stderr
    wildcard = typed(broker, "pub", "-t", "a/#", "-m", "x")
    assert wildcard.returncode == 2 and "wildcard" in wildcard.stderr
    filters = typed(broker, "sub", "-t", "a/#/b")
    assert filters.returncode in (1, 2)
    nowhere = typed(broker, "pub", "-t", "a", "-f", tmp_path / "nowhere")
    assert nowhere.returncode == 1 and "nowhere: No such file" in nowhere.stderr
    no_ca = typed(broker, "pub", "-t", "a", "-m", "x", "--cafile", tmp_path / "ca")
    assert no_ca.returncode == 1 and "ca: No such file" in no_ca.stderr
    for one in (away, wildcard, filters, nowhere, no_ca):
        assert one.stderr.startswith("embermq: ") and one.stderr.count("\n") == 1, one.stderr
