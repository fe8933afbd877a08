"""What operators ask of a running broker over HTTP, by tokens of each scope."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tests.support.admin_broker import AdminBroker
from tests.support.forked_program import run_program
from tests.support.mqtt_client import MqttClient, run
from tests.support.users import PASSWORD
from tests.support.waiting import wait_for, wait_until

from embermq.admin.access import Scope
from embermq.app.api_tokens import TokenFile
from embermq.app.audit_trail import user_name
from embermq.mqtt.wire.packets import Subscription
from embermq.mqtt.wire.reason_codes import ReasonCode

KEPT_S = 3_600
RULES = """[[rule]]
deny = "publish"
topics = "guarded/#"
[[rule]]
allow = "all"
"""
READ, OPERATE, ADMIN = Scope.READ, Scope.OPERATE, Scope.ADMIN


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminBroker]:
    folder = tmp_path_factory.mktemp("admin")
    rules = folder / "rules.toml"
    rules.write_text(RULES)
    with AdminBroker(folder, "ann", "bob", settings={"authorization.rules": rules}) as running:
        yield running


async def asked(broker: AdminBroker, method: str, path: str, scope: Scope = ADMIN, **more: Any) -> Any:
    return await asyncio.to_thread(partial(broker.told, method, path, scope, **more))


async def refused(
    broker: AdminBroker, status: int, method: str, path: str, scope: Scope | None = ADMIN, **more: Any
) -> str:
    return await asyncio.to_thread(partial(broker.refused, status, method, path, scope, **more))


async def connected(
    broker: AdminBroker, client_id: str, user: str | None = None, *filters: str, expiry_s: int = 0
) -> MqttClient:
    client = MqttClient(client_id)
    password = PASSWORD if user is not None else None
    await client.connect(broker.port, username=user, password=password, expiry_s=expiry_s, keep_alive_s=60)
    if filters:
        await client.subscribe(*(Subscription(each, 1) for each in filters))
    return client


async def gone(client: MqttClient) -> None:
    client.close()
    await client.ended


def test_clients_are_listed_by_filters_and_in_pages(broker: AdminBroker, name: str) -> None:
    async def scenario() -> None:
        here = await connected(broker, f"{name}/1 ?", "ann")
        await gone(await connected(broker, f"{name}/2", "bob", "t/#", expiry_s=KEPT_S))
        other = await connected(broker, f"{name}/3")

        async def ids(query: str) -> list[str]:
            found = await asked(broker, "GET", f"/clients?match={quote(name + '/*')}{query}", READ)
            return [one["client_id"].removeprefix(f"{name}/") for one in found]

        assert await ids("") == ["1 ?", "2", "3"]
        assert await ids("&limit=2") == ["1 ?", "2"]
        assert await ids(f"&after={quote(name + '/2')}") == ["3"]
        assert await ids("&connected=true") == ["1 ?", "3"]
        assert await ids("&connected=false") == ["2"]
        assert await ids("&user=ann") == ["1 ?"]
        assert await ids("&user=bob&connected=false&type=device") == ["2"]
        assert await ids("&type=application") == []
        assert "connected" in await refused(broker, 400, "GET", "/clients?connected=perhaps")
        assert "matches" in await refused(broker, 400, "GET", "/clients?matches=x")
        await gone(here)
        await gone(other)

    run(scenario())


def test_a_client_is_shown_with_its_connection_session_and_subscriptions(
    broker: AdminBroker, name: str
) -> None:
    async def scenario() -> None:
        client = await connected(broker, f"{name}/ä", "ann", "b/#", "a", "c/+", expiry_s=KEPT_S)
        path = f"/clients/{quote(client.client_id, safe='')}"
        found = await asked(broker, "GET", path, READ)
        connection, session = found["connection"], found["session"]
        assert connection["peer"] == session["peer"] and connection["peer"].startswith("127.0.0.1:")
        assert (connection["username"], connection["version"]) == ("ann", "5.0")
        assert connection["listener"] == f"listeners.mqtt 127.0.0.1:{broker.port}"
        assert connection["keep_alive_s"] == 90 and connection["silent_s"] < KEPT_S  # 1.5 times what it said
        assert connection["connected"] >= session["created"]
        assert (session["username"], session["subscriptions"], session["queued"]) == ("ann", 3, 0)
        assert [one["topic_filter"] for one in found["subscriptions"]] == ["a", "b/#", "c/+"]
        page = await asked(broker, "GET", f"{path}/subscriptions?after=a&limit=1", READ)
        assert [one["topic_filter"] for one in page] == ["b/#"]

        assert "scope operate" in await refused(broker, 403, "DELETE", f"{path}/connection", READ)
        await asked(broker, "DELETE", f"{path}/connection", OPERATE)
        await client.ended
        assert client.disconnect_received is not None
        assert client.disconnect_received.reason_code == ReasonCode.ADMINISTRATIVE_ACTION
        assert "is not connected" in await refused(broker, 409, "DELETE", f"{path}/connection", OPERATE)
        away = await asked(broker, "GET", path, READ)
        assert away["connection"] is None and away["session"]["kept"]

        assert "scope admin" in await refused(broker, 403, "DELETE", path, OPERATE)
        await asked(broker, "POST", f"{path}/give?user=bob")
        assert (await asked(broker, "GET", path))["session"]["username"] == "bob"
        await asked(broker, "DELETE", path)
        assert "no session" in await refused(broker, 404, "GET", path)

    run(scenario())


def test_without_a_token_nothing_is_told(broker: AdminBroker, name: str) -> None:
    for path in ("/clients", f"/clients/{name}", "/pins", "/cluster"):
        assert "a token is needed" in broker.refused(401, "GET", path, None)


def test_what_is_published_over_http_reaches_subscribers_queues_and_the_retained_messages(
    broker: AdminBroker, name: str
) -> None:
    async def scenario() -> None:
        client = await connected(broker, name, "ann", f"{name}/#")
        message = {
            "topic": f"{name}/t",
            "payload": "häll",
            "retain": True,
            "properties": {"content_type": "text"},
        }
        assert "scope operate" in await refused(broker, 403, "POST", "/publish", READ, json=message)
        assert await asked(broker, "POST", "/publish", OPERATE, json=message) == {"stored": True, "told": ""}
        await wait_for(lambda: bool(client.messages))
        got = client.messages[0]
        assert (got.topic, got.payload, got.qos) == (f"{name}/t", "häll".encode(), 1)
        assert got.properties is not None and got.properties.content_type == "text"

        (listed,) = await asked(broker, "GET", f"/retained?filter={name}/%23", READ)
        assert (listed["topic"], listed["payload_bytes"], listed["qos"]) == (f"{name}/t", 5, 1)
        assert "payload" not in listed
        path = f"/retained/{quote(name + '/t', safe='')}"
        assert "scope operate" in await refused(broker, 403, "GET", path, READ)
        assert (await asked(broker, "GET", path, OPERATE))["payload"] == "häll"
        await asked(broker, "DELETE", path, OPERATE)
        await wait_for(lambda: len(client.messages) == 2)
        assert client.messages[1].payload == b""
        assert "nothing is retained" in await refused(broker, 404, "GET", path, OPERATE)

        job = {
            "topic": f"$queue/{name}",
            "payload": "job",
            "properties": {"user_properties": [["dedup-id", "1"]]},
        }
        assert (await asked(broker, "POST", "/publish", OPERATE, json=job))["stored"]
        again = await asked(broker, "POST", "/publish", OPERATE, json=job)
        assert not again["stored"] and "dedup-id is known" in again["told"]
        (held,) = await asked(broker, "GET", f"/queues/{name}/messages", READ)
        assert held["payload"] == "job"
        for bad in ({"topic": "a/#"}, {"topic": "$SYS/x"}, {"topic": "a", "retained": True}, {"topic": ""}):
            await refused(broker, 400, "POST", "/publish", OPERATE, json=bad)
        version = await asked(broker, "GET", "/retained/%24SYS%2Fbroker%2Fversion", OPERATE)
        assert version["payload"].startswith("embermq version ")
        await gone(client)

    run(scenario())


def test_the_broker_tells_what_it_is_and_does(broker: AdminBroker, name: str) -> None:
    async def publishes() -> None:
        client = await connected(broker, name, "ann")
        await client.publish(f"{name}/t", b"x" * 100, qos=1)
        await gone(client)

    run(publishes())
    found = broker.told("GET", "/broker", READ)
    assert found["version"] == version("embermq") and found["ready"] and found["parts"]["log"] == "ok"
    assert found["listeners"]["mqtt"] == [f"127.0.0.1:{broker.port}"]
    assert found["totals"]["messages_received"] >= 1 and found["uptime_s"] > 0
    assert found["now"]["memory_bytes"] > 1024 * 1024 and found["has_queues"]
    wait_until(
        lambda: any(
            one["messages_in_per_s"] and one["acknowledged_p99_ms"] and one["sessions"] >= 0
            for one in broker.told("GET", "/broker/figures", READ)
        ),
        what="the message is in the figures",
    )


def test_who_follows_the_events_gets_figures_and_what_clients_do(broker: AdminBroker, name: str) -> None:
    headers = {"authorization": f"Bearer {broker.tokens[READ]}"}
    url = f"{broker.url}/events/stream"
    with httpx.stream("GET", url, headers=headers, timeout=60) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert next(lines).startswith(":")
        run(_comes_and_goes(broker, name))
        seen: dict[str, list[dict[str, Any]]] = {"figures": [], "client": []}
        kind = ""
        for line in lines:
            word, _, text = line.partition(": ")
            if word == "event":
                kind = text
            elif word == "data":
                seen[kind].append(json.loads(text))
            of_ours = [one["event"] for one in seen["client"] if one.get("client_id") == name]
            if of_ours == ["connected", "disconnected"] and seen["figures"]:
                break
    came = next(one for one in seen["client"] if one.get("client_id") == name)
    assert (came["user"], came["protocol"]) == ("ann", "5.0") and came["peer"].startswith("127.0.0.1:")
    assert {"connections", "messages_in_per_s", "pipeline_lag_s"} <= set(seen["figures"][0])
    assert "a token is needed" in broker.refused(401, "GET", "/events/stream", None)


async def _comes_and_goes(broker: AdminBroker, client_id: str) -> None:
    await gone(await connected(broker, client_id, "ann"))


def test_a_stream_ends_with_its_token(broker: AdminBroker) -> None:
    tokens = TokenFile(broker.data_dir)
    secret = tokens.create("passing", READ, 0)
    headers = {"authorization": f"Bearer {secret}"}
    with httpx.stream("GET", f"{broker.url}/events/stream", headers=headers, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        tokens.revoke("passing")
        assert sum(1 for _ in lines) < 1_000  # it ends


def test_accounts_are_made_changed_and_removed_and_whoever_entered_with_them_goes(
    broker: AdminBroker, name: str
) -> None:
    async def scenario() -> None:
        user, path = f"{name}/ü", f"/accounts/{quote(f'{name}/ü', safe='')}"
        new = {"name": user, "password": PASSWORD.decode(), "type": "application"}
        assert "scope admin" in await refused(broker, 403, "POST", "/accounts", OPERATE, json=new)
        assert await asked(broker, "POST", "/accounts", json=new) == {"name": user}
        assert "already" in await refused(broker, 409, "POST", "/accounts", json=new)
        assert "type" in await refused(broker, 400, "POST", "/accounts", json={**new, "type": "robot"})
        (listed,) = await asked(broker, "GET", f"/accounts?match={name}*", READ)
        created = listed.pop("created")
        assert created and listed == {"name": user, "type": "application", "disabled": False, "scram": False}

        client = await connected(broker, name, user)
        await asked(broker, "POST", f"{path}/disable")
        await client.ended
        assert (await refuses(broker, name, user, PASSWORD)) == ReasonCode.NOT_AUTHORIZED
        await asked(broker, "POST", f"{path}/enable")
        client = await connected(broker, name, user)
        made = (await asked(broker, "PUT", f"{path}/password", json={}))["password"]
        await client.ended
        assert (await refuses(broker, name, user, PASSWORD)) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert (await refuses(broker, name, user, made.encode())) == ReasonCode.SUCCESS
        await asked(broker, "DELETE", path)
        assert "no user" in await refused(broker, 404, "DELETE", path)
        assert "no user" in await refused(broker, 404, "PUT", f"{path}/password", json={})
        said = broker.output()
        assert made not in said
        assert re.search(r"operation=AddAccount .* token=admin", said)

    run(scenario())


async def refuses(broker: AdminBroker, client_id: str, user: str, password: bytes) -> int:
    """The reason code of a CONNECT."""
    client = MqttClient(client_id)
    code = (await client.connect(broker.port, username=user, password=password)).reason_code
    await gone(client)
    return code


def test_tokens_are_made_used_and_revoked(broker: AdminBroker, name: str) -> None:
    asked_for = {"name": name, "scope": "operate", "expires": "1h"}
    assert "scope admin" in broker.refused(403, "POST", "/tokens", OPERATE, json=asked_for)
    assert "scope admin" in broker.refused(403, "GET", "/tokens", OPERATE)
    made = broker.told("POST", "/tokens", json=asked_for)["token"]
    bearer = {"authorization": f"Bearer {made}"}
    assert httpx.get(f"{broker.url}/clients", headers=bearer, timeout=30).status_code == 200
    assert "already" in broker.refused(409, "POST", "/tokens", json=asked_for)
    assert "expires" in broker.refused(400, "POST", "/tokens", json={"name": "x", "expires": "0s"})
    (listed,) = [one for one in broker.told("GET", "/tokens") if one["name"] == name]
    assert (
        listed["scope"] == "operate" and listed["expires"] and "token" not in listed and "hash" not in listed
    )
    broker.told("DELETE", f"/tokens/{name}")
    assert httpx.get(f"{broker.url}/clients", headers=bearer, timeout=30).status_code == 401
    broker.refused(404, "DELETE", f"/tokens/{name}")
    assert made not in broker.output()


def test_rules_are_listed_and_tried(broker: AdminBroker, name: str) -> None:
    found = broker.told("GET", "/rules", READ)
    assert found["files"] == [str(broker.settings["authorization.rules"])] and not found["no_match_allows"]
    assert found["rules"][0]["actions"] == ["publish"] and "guarded" in found["rules"][0]["told"]

    def check(**asked: str) -> tuple[bool, str]:
        answer = broker.told("POST", "/rules/check", READ, json=asked)
        return answer["allowed"], answer["why"]

    allowed, why = check(action="publish", topic="guarded/x", user="ann")
    assert not allowed and "rules.toml:1" in why
    assert check(action="subscribe", topic="$share/g/free/#", user="ann")[0]
    assert check(action="connect", client_id=name, user="ann")[0]
    assert "topic" in broker.refused(400, "POST", "/rules/check", json={"action": "publish", "topic": "a/#"})
    assert "client_id" in broker.refused(400, "POST", "/rules/check", json={"action": "connect"})


def test_settings_are_shown_without_passwords_and_changed_where_that_is_safe(broker: AdminBroker) -> None:
    assert "scope admin" in broker.refused(403, "GET", "/configuration", OPERATE)
    found = {one["key"]: one for one in broker.told("GET", "/configuration")}
    assert found["listeners.mqtt"]["value"] in (f"127.0.0.1:{broker.port}", [f"127.0.0.1:{broker.port}"])
    assert found["listeners.mqtt"]["origin"] == "--set" and not found["listeners.mqtt"]["is_live"]
    assert found["http_hook.url"]["value"] == "" and found["logging.level"]["is_live"]
    change = {"settings": {"logging.level": "debug"}}
    (changed,) = broker.told("PATCH", "/configuration", json=change)
    assert (changed["value"], changed["origin"]) == ("debug", "API")
    broker.told("PATCH", "/configuration", json={"settings": {"logging.level": "info"}})
    both = {"settings": {"logging.level": "debug", "mqtt.inflight_max": 5}}
    assert "mqtt.inflight_max" in broker.refused(409, "PATCH", "/configuration", json=both)
    assert "nothing.such" in broker.refused(
        400, "PATCH", "/configuration", json={"settings": {"nothing.such": 1}}
    )
    assert "level" in broker.refused(
        400, "PATCH", "/configuration", json={"settings": {"logging.level": "loud"}}
    )
    assert {one["key"]: one for one in broker.told("GET", "/configuration")}["logging.level"][
        "value"
    ] == "info"


def test_who_is_banned_is_sent_away_and_not_let_in_over_a_restart(tmp_path: Path, name: str) -> None:
    ban = f"/bans/user/{name}%2Fu"
    user = f"{name}/u"

    async def before() -> None:
        client = await connected(banning, name, user, "t", expiry_s=KEPT_S)
        assert "scope operate" in await refused(banning, 403, "PUT", ban, READ, json={})
        put = await asked(banning, "PUT", ban, OPERATE, json={"lasts": "1h", "reason": "floods"})
        assert put["disconnected"] == 1 and put["ban"]["until"] > put["ban"]["since"]
        await client.ended
        assert await refuses(banning, name, user, PASSWORD) == ReasonCode.BANNED
        assert await refuses(banning, name, user, b"wrong") == ReasonCode.BANNED, "no password is looked at"
        assert "lasts" in await refused(banning, 400, "PUT", ban, OPERATE, json={"lasts": "soon"})
        await refused(banning, 400, "PUT", "/bans/address/nowhere", OPERATE, json={})
        await refused(banning, 400, "PUT", "/bans/animal/dog", OPERATE, json={})
        everybody = await refused(banning, 400, "PUT", "/bans/address/0.0.0.0%2F0", OPERATE, json={})
        assert "/8 is the widest" in everybody
        own = "/bans/address/127.0.0.1%2F32"
        assert "even_own" in await refused(banning, 409, "PUT", own, OPERATE, json={})
        assert "caller" in await refused(banning, 400, "PUT", f"{own}?caller=x", OPERATE, json={})
        assert "caller" in await refused(banning, 400, "PUT", own, OPERATE, json={"caller": "192.0.2.1"})
        await asked(banning, "PUT", own, OPERATE, json={"even_own": True})
        assert await refuses(banning, "other", "ann", PASSWORD) == ReasonCode.BANNED

    async def after() -> None:
        found = await asked(banning, "GET", "/bans", READ)
        assert [(one["kind"], one["value"]) for one in found] == [("address", "127.0.0.1"), ("user", user)]
        assert [one["value"] for one in await asked(banning, "GET", "/bans?limit=1")] == ["127.0.0.1"]
        assert await refuses(banning, "other", "ann", PASSWORD) == ReasonCode.BANNED
        await asked(banning, "DELETE", "/bans/address/127.0.0.1", OPERATE)
        await refused(banning, 404, "DELETE", "/bans/address/127.0.0.1", OPERATE)
        assert await refuses(banning, "other", "ann", PASSWORD) == ReasonCode.SUCCESS
        assert await refuses(banning, name, user, PASSWORD) == ReasonCode.BANNED
        done = await asyncio.to_thread(
            run_program, "bans", "remove", "user", user, "--data-dir", banning.data_dir
        )
        assert done.returncode == 0, done.stderr
        client = await connected(banning, name, user, expiry_s=KEPT_S)
        assert client.connack is not None
        await gone(client)

    with AdminBroker(tmp_path, "ann", user) as banning:
        run(before())
        banning.kill()
        banning.start()
        run(after())


def test_rules_of_the_pipeline_are_written_with_a_scope_of_their_own(broker: AdminBroker, name: str) -> None:
    """This broker has no pipeline, which is the only reason that the right token hears."""
    rule, path = {"sql": "SELECT topic, payload FROM messages"}, f"/pipeline/rules/{name[-20:]}"
    for scope in (READ, OPERATE, ADMIN):
        assert f"scope rules, {scope} has {scope}" in broker.refused(403, "PUT", path, scope, json=rule)
        assert f"scope rules, {scope} has {scope}" in broker.refused(403, "DELETE", path, scope)
    assert "a token is needed" in broker.refused(401, "PUT", path, None, json=rule)
    assert "does not run in this broker" in broker.refused(409, "PUT", path, Scope.RULES, json=rule)
    for more in (
        {"tables": ["a=/etc/a.csv"]},
        {"url_file": "/etc/u"},
        {"to": "webhook"},
        {"headers_file": "/h"},
    ):
        broker.refused(400, "PUT", path, Scope.RULES, json=rule | more)
    assert broker.told("GET", "/pipeline/rules", Scope.RULES) == []
    for method, elsewhere in (("POST", "/publish"), ("GET", "/tokens"), ("PATCH", "/configuration")):
        assert "rules has rules" in broker.refused(403, method, elsewhere, Scope.RULES, json={})
    (change,) = broker.told("GET", "/audit", params={"what": "PutPipelineRule", "by": "token rules"})
    assert change["object"] == {"rule": name[-20:], "to": "mqtt", "sql": rule["sql"]}
    assert change["outcome"].startswith("refused: ")


def test_what_is_changed_is_in_the_audit_trail_whatever_is_logged(
    broker: AdminBroker, name: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        level = {"settings": {"logging.level": "error"}}
        await asked(broker, "PATCH", "/configuration", json=level)
        try:
            await asked(broker, "POST", "/accounts", json={"name": name, "password": "hidden-password"})
            await refused(broker, 404, "DELETE", f"/clients/{name}", ADMIN)
            await refused(broker, 403, "DELETE", f"/accounts/{name}", OPERATE)
            message = {"topic": f"{name}/t", "payload": "hidden-payload"}
            await asked(broker, "POST", "/publish", OPERATE, json=message)
            data_dir = ("--data-dir", broker.data_dir)

            async def typed(*words: str | Path) -> CompletedProcess[str]:
                return await asyncio.to_thread(run_program, *words)

            assert (await typed("users", "disable", name, *data_dir)).returncode == 0
            assert (await typed("sessions", "delete", name, "--yes", *data_dir)).returncode == 1
        finally:
            await asked(broker, "PATCH", "/configuration", json={"settings": {"logging.level": "info"}})

        async def found() -> list[dict[str, Any]]:
            return [one for one in await asked(broker, "GET", "/audit") if name in json.dumps(one["object"])]

        shown = await found()
        user = f"user {user_name()}"
        assert [(one["by"], one["over"], one["operation"]) for one in shown] == [
            (user, "control", "DeleteSession"),
            (user, "command", "DisableAccount"),
            ("token operate", "http", "Publish"),
            ("token admin", "http", "DeleteSession"),
            ("token admin", "http", "AddAccount"),
        ]
        outcomes = [one["outcome"] for one in shown]
        assert outcomes[1:3] == ["done"] * 2 and outcomes[4] == "done"
        assert all(each.startswith("refused: ") for each in (outcomes[0], outcomes[3]))
        assert shown[2]["object"] == {"topic": f"{name}/t", "qos": 1, "retain": False}
        assert {one["peer"] for one in shown} == {"127.0.0.1", ""}
        assert not {"hidden-password", "hidden-payload"} & set(json.dumps(shown).split('"'))
        await refused(broker, 403, "GET", "/audit", OPERATE)
        listed = await typed("audit", "--by", "token operate", "--json", *data_dir)
        assert [one["operation"] for one in json.loads(listed.stdout)][:1] == ["Publish"], listed.stderr
        token = tmp_path / "token"
        token.write_text(broker.tokens[ADMIN])
        remote = ("--url", f"http://127.0.0.1:{broker.http_port}", "--token-file", token)
        listed = await typed("audit", "--last", "3", *remote)
        assert len(listed.stdout.splitlines()) == 4 and "ChangeSettings" in listed.stdout, listed.stderr

    run(scenario())


def test_accounts_of_a_broker_elsewhere_are_kept_by_commands(
    broker: AdminBroker, name: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"

    def typed(*words: str, scope: Scope = ADMIN, given: str = "", code: int = 0) -> str:
        token.write_text(broker.tokens[scope])
        url = f"http://127.0.0.1:{broker.http_port}"
        done = run_program("users", *words, "--url", url, "--token-file", token, stdin=given)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def state() -> list[object]:
        listed = json.loads(typed("list", "--json", scope=READ))
        return [(each["name"], each["type"], each["disabled"]) for each in listed if name in each["name"]]

    async def enters(user: str, password: str, code: int) -> None:
        client = MqttClient(f"{name}-client")
        answer = await client.connect(broker.port, username=user, password=password.encode())
        assert answer.reason_code == code
        client.close()

    one, two = f"{name}-1", f"{name}-2"
    assert typed("add", one, given="s3cret\n") == f"added {one} (device)\n"
    made = typed("add", two, "--generate", "--type", "application").strip().partition("\t")
    assert made[0] == two and len(made[2]) > 16
    assert "--generate" in typed("add", "a", "b", given="x\n", code=2)
    assert "empty" in typed("password", one, given="\n", code=1)
    assert "scope admin" in typed("remove", one, scope=READ, code=1)
    run(enters(one, "s3cret", 0))
    run(enters(two, made[2], 0))
    assert typed("password", one, given="another\n") == f"changed the password of {one}\n"
    run(enters(one, "s3cret", 0x86))
    run(enters(one, "another", 0))
    typed("disable", two)
    assert state() == [(one, "device", False), (two, "application", True)]
    typed("enable", two)
    typed("remove", one)
    typed("remove", two)
    assert state() == []


def test_tokens_rules_and_pipeline_of_a_broker_elsewhere_are_told_by_commands(
    broker: AdminBroker, name: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"

    def typed(*words: str, scope: Scope = ADMIN, code: int = 0) -> str:
        token.write_text(broker.tokens[scope])
        url = f"http://127.0.0.1:{broker.http_port}"
        done = run_program(*words, "--url", url, "--token-file", token)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    data_dir = ("--data-dir", broker.data_dir)
    made = typed("tokens", "create", name, "--scope", "operate", "--expires", "12h").strip()
    assert httpx.get(f"{broker.url}/clients", headers={"authorization": f"Bearer {made}"}).is_success
    assert json.loads(typed("tokens", "list", "--json")) == json.loads(
        run_program("tokens", "list", "--json", *data_dir).stdout
    )
    assert name in typed("tokens", "list") and made not in typed("tokens", "list")
    assert "scope admin" in typed("tokens", "revoke", name, scope=OPERATE, code=1)
    assert typed("tokens", "revoke", name) == f"revoked {name}\n"
    assert name not in typed("tokens", "list")

    denied = typed("acl", "check", "--user", "ann", "--publish", "guarded/x", scope=READ, code=1)
    assert denied.startswith("denied: publish guarded/x\n") and "rules.toml:1" in denied
    asked = ("--connect", "--user", "ann", "--client-id", name, "--json")
    found = json.loads(typed("acl", "check", *asked, scope=READ))
    assert (found["allowed"], found["client_id"]) == (True, name)
    assert "without --rules" in typed("acl", "check", "--publish", "t", "--rules", "f.toml", code=2)
    rules = ("--rules", str(broker.settings["authorization.rules"]))
    assert typed("acl", "list", scope=READ) == run_program("acl", "list", *rules).stdout
    assert typed("acl", "list", "--json", scope=READ) == run_program("acl", "list", "--json", *rules).stdout

    status = json.loads(typed("pipeline", "status", "--json", scope=READ))
    assert (
        status["state"] == json.loads(run_program("pipeline", "status", "--json", *data_dir).stdout)["state"]
    )
    assert typed("pipeline", "status", scope=READ).startswith(f"pipeline  {status['state']}")


def test_commands_reach_a_broker_by_its_api(broker: AdminBroker, name: str, tmp_path: Path) -> None:
    token = tmp_path / "token"

    def typed(*words: str, scope: Scope = READ, before: str = "") -> tuple[int, str]:
        token.write_text(f"{before}{broker.tokens[scope]}\n")
        url = f"http://127.0.0.1:{broker.http_port}/"
        done = run_program(*words, "--url", url, "--token-file", token)
        return done.returncode, done.stdout + done.stderr

    async def scenario() -> None:
        client = await connected(broker, f"{name}/1", "ann")
        code, said = await asyncio.to_thread(typed, "sessions", "list", "--match", f"{name}*")
        assert code == 0 and f"{name}/1" in said
        for wrong, why in (("\ufeff", ""), ("é", "its first line is no token"), ("\n", "is no token")):
            code, said = await asyncio.to_thread(partial(typed, "sessions", "list", before=wrong))
            assert (code == 2 and why in said and said.count("\n") == 1) if why else code == 0, said
        code, said = await asyncio.to_thread(typed, "sessions", "disconnect", f"{name}/1")
        assert code == 1 and "scope operate" in said
        code, said = await asyncio.to_thread(
            partial(typed, "sessions", "disconnect", f"{name}/1", scope=OPERATE)
        )
        assert code == 0, said
        await client.ended

    run(scenario())
    assert run_program("sessions", "list", "--url", "nowhere").returncode == 2
