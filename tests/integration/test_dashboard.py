"""The dashboard in Chromium, on a real broker: one browser for the whole file."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.support.admin_broker import AdminBroker
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.browser import Browser, browser
from tests.support.dashboard_page import accessible, address, confirm, log_in, open_page
from tests.support.foreign_clients import ROOT
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_until

from embermq.admin.access import Scope
from embermq.admin.values import ParkedClientView, ParkedDetail, ParkedView
from embermq.mqtt.wire.packets import Subscription
from embermq.ports.membership import NodeAbout, NodeView

PAGE = ROOT / "src" / "embermq" / "admin" / "page"
BYTES_MAX = 200_000
SOCKET_PORT = free_port()
ENTERED = "nav#menu"


@pytest.fixture(scope="module")
def packages() -> None:
    built = subprocess.run(
        [ROOT / "scripts" / "foreign-clients", "--check"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminBroker]:
    settings = {"listeners.ws": f"127.0.0.1:{SOCKET_PORT}", "logging.level": "info"}
    with AdminBroker(tmp_path_factory.mktemp("dashboard"), settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def chromium(packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def page(chromium: Browser, broker: AdminBroker) -> Iterator[Browser]:
    """In, as an admin, at the overview."""
    log_in(chromium, broker, broker.tokens[Scope.ADMIN])
    chromium.run("await page.waitForSelector(given.entered)", entered=ENTERED)
    yield chromium
    assert chromium.run("return problems.splice(0)") == []  # errors, and what the content policy forbade


def test_the_page_that_is_served_is_built_from_its_sources(packages: None, tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "dashboard", tmp_path], check=True, timeout=300)
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    served = {path.name: path.read_bytes() for path in PAGE.iterdir()}
    assert built.keys() == served.keys()
    assert [name for name in built if built[name] != served[name]] == [], "type: scripts/dashboard"
    assert sum(map(len, built.values())) < BYTES_MAX


def test_nothing_else_may_be_loaded_or_run(broker: AdminBroker) -> None:
    for path in ("", "dashboard/app.js"):
        answer = httpx.get(address(broker) + path, timeout=30)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert f"connect-src 'self' ws://127.0.0.1:{SOCKET_PORT}; base-uri" in policy
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = httpx.get(
            address(broker) + path, headers={"if-none-match": answer.headers["etag"]}, timeout=30
        )
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("host", ["a; script-src *", "a b", "*", "[::1]", ""])
def test_no_host_gets_into_the_content_policy_that_is_no_name(broker: AdminBroker, host: str) -> None:
    with socket.create_connection(("127.0.0.1", broker.http_port), 30) as client:
        client.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: client.recv(65_536), b"")).lower()
    assert b"connect-src 'self'; base-uri" in answer or answer.startswith(b"http/1.1 4")


def test_a_bad_token_is_refused_and_kept_nowhere(chromium: Browser, broker: AdminBroker) -> None:
    log_in(chromium, broker, "nobody-knows-this")
    told = chromium.run("await page.waitForSelector('#why.bad'); return page.textContent('#why')")
    assert told == "the token is unknown, revoked or over"
    assert chromium.run(
        "return page.evaluate(() => JSON.stringify([{...sessionStorage}, {...localStorage}]))"
    ) == ("[{},{}]")
    assert accessible(chromium) == []


def test_a_token_is_in_no_address_and_goes_with_leaving(page: Browser, broker: AdminBroker) -> None:
    found = page.run(
        """
        const asked = [];
        const note = (request) => asked.push([request.url(), request.headers().authorization ?? ""]);
        page.on("request", note);
        await page.reload();
        await page.waitForSelector(given.entered);
        await page.waitForSelector(".tile b:has-text('MiB')");
        page.off("request", note);
        return asked;
        """,
        entered=ENTERED,
    )
    secret = broker.tokens[Scope.ADMIN]
    assert found and not [url for url, _ in found if secret in url]
    assert not [url for url, _ in found if not url.startswith(address(broker))]
    assert {sent for url, sent in found if "/api/" in url} == {f"Bearer {secret}"}
    left = """
        await page.click("text=Leave");
        await page.waitForSelector("input[type=password]");
        return page.evaluate(() => sessionStorage.length);
        """
    assert page.run(left) == 0


def test_the_overview_counts_and_charts(page: Browser) -> None:
    told = page.run(
        """
        await page.waitForFunction(() => document.querySelector(".line")?.getAttribute("d").includes("L"));
        return page.evaluate(() => ({
          tiles: [...document.querySelectorAll(".tile dt")].map((each) => each.textContent),
          chart: document.querySelector(".plot").getAttribute("aria-label"),
        }));
        """
    )
    assert told["tiles"][:3] == ["Connections", "Sessions", "Subscriptions"]
    assert "received 0/s" in told["chart"], told
    assert accessible(page) == []


def test_charts_begin_with_what_the_broker_remembers(page: Browser, broker: AdminBroker) -> None:
    """Before the page has seen anything itself."""
    wait_until(lambda: len(broker.told("GET", "/broker/figures")) > 2, what="figures of three seconds")
    page.run(
        """
        await page.route("**/metrics", (route) => route.abort());
        await page.reload();
        await page.waitForFunction(() => document.querySelector(".line")?.getAttribute("d").includes("L"));
        await page.unroute("**/metrics");
        """
    )


def test_a_lost_connection_is_shown_and_taken_up_again(page: Browser, broker: AdminBroker) -> None:
    page.run("await page.waitForSelector('.tile b:has-text(\"MiB\")')")
    broker.kill()
    told = page.run(
        """
        await page.waitForSelector(".notice.bad:has-text('No answer from the broker since')");
        await page.waitForSelector(".notice.bad:has-text('Next attempt at')");
        await page.waitForSelector("text=Try now");
        return page.textContent(".tile b");
        """
    )
    assert told == "0"  # what was there stays
    broker.start()
    page.run(
        """
        await page.evaluate(() => {  // unless it has been taken up by itself
          [...document.querySelectorAll("button")].find((each) => each.textContent === "Try now")?.click();
        });
        await page.waitForSelector(".notice.bad", { state: "detached" });
        """
    )


def test_without_any_token_this_machine_is_in_and_told_so(chromium: Browser, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        told = chromium.run(
            """
            page = await fresh();
            await page.goto(given.address);
            await page.waitForSelector(given.entered);
            return page.textContent(".notice");
            """,
            address=address(broker),
            entered=ENTERED,
        )
        assert "every program on this machine may operate this broker" in told
        assert "embermq tokens create" in told
        stranger = chromium.run(
            """
            page = await fresh();
            await page.goto("data:text/html,another page");
            return page.evaluate(async (api) => {
              const tried = [
                ["POST", "/publish", { mode: "no-cors", headers: { "content-type": "text/plain" } }],
                ["POST", "/publish", { headers: { "content-type": "application/json" } }],
                ["GET", "/retained?filter=%23", {}], ["GET", "/configuration", {}], ["DELETE", "/clients/x", {}],
              ];
              const read = [];
              for (const [method, path, more] of tried) {
                const body = method === "POST" ? '{"topic":"stranger","payload":"x","retain":true}' : undefined;
                await fetch(api + path, { method, body, ...more }).then((answer) => answer.text()).then(
                  (text) => text && read.push(text), () => {});
              }
              return read;
            }, given.api);
            """,
            api=f"{address(broker)}api/v1",
        )
        assert stranger == [], "another page in this browser reads nothing"
        found = httpx.get(f"{address(broker)}api/v1/retained?filter=stranger", timeout=30)
        assert (found.status_code, found.json()) == (200, []), "and does nothing"


def test_a_client_is_found_shown_and_sent_away(page: Browser, broker: AdminBroker, name: str) -> None:
    async def scenario() -> None:
        client = MqttClient(f"{name}/1 ?")
        await client.connect(broker.port, expiry_s=3_600, keep_alive_s=60)
        await client.subscribe(Subscription(f"{name}/+/#", 1))
        await asyncio.to_thread(look)
        await client.ended

    def look() -> None:
        open_page(page, "clients")
        page.run(
            """
            await page.fill("input[type=search]", given.name);
            await page.click(`tbody a:has-text("${given.name}/1 ?")`);
            await page.waitForSelector(`th:has-text("${given.name}/+/#")`);
            await page.waitForSelector("text=Nothing has happened since");
            """,
            name=name,
        )
        assert accessible(page) == []
        assert f"The connection of {name}/1 ? was ended." in confirm(page, "Send away")
        page.run("await page.waitForSelector('text=The client is away.')")
        page.run("await page.waitForSelector('[aria-label=Events] th:text-is(\"disconnected\")')")
        assert f"The session of {name}/1 ? is gone." in confirm(page, "End session")

    run(scenario())
    assert broker.told("GET", f"/clients?match={name}*") == []


@pytest.mark.parametrize("client_id", [pytest.param(".", marks=pytest.mark.in_faults), ".."])
def test_a_name_that_browsers_take_for_a_step_is_acted_on(
    page: Browser, broker: AdminBroker, client_id: str
) -> None:
    async def scenario() -> None:
        client = MqttClient(client_id)
        await client.connect(broker.port, expiry_s=3_600, keep_alive_s=60)
        await asyncio.to_thread(look)
        await client.ended

    def look() -> None:
        open_page(page, "clients")
        page.run(
            "await page.fill('input[type=search]', given.id); await page.click(`tbody a:text-is('${given.id}')`);",
            id=client_id,
        )
        assert f"The connection of {client_id} was ended." in confirm(page, "Send away")
        page.run("await page.waitForSelector('text=The client is away.')")
        assert f"The session of {client_id} is gone." in confirm(page, "End session")

    run(scenario())
    assert broker.told("GET", f"/clients?match={client_id}") == []


def test_ten_thousand_clients_are_shown_page_by_page(page: Browser) -> None:
    """The browser gets pages as the API makes them, and draws no more than one."""
    told = page.run(
        """
        const ids = [...Array(10_000).keys()].map((number) => `c${String(number).padStart(5, "0")}`);
        const row = {
          type: "device", username: "", connected_as: "", version: "5.0", connected: true, peer: "", kept: true,
          expiry_interval_s: 1, expires: null, created: "2026-01-01T00:00:00+00:00", subscriptions: 1, queued: 0,
          waiting: 0, in_flight: 0, receiving: 0, behind: null,
        };
        const limits = new Set();
        await page.route("**/api/v1/clients?*", (route) => {
          const asked = new URL(route.request().url()).searchParams;
          const [after, limit] = [asked.get("after") ?? "", Number(asked.get("limit"))];
          limits.add(limit);
          const found = ids.filter((client_id) => client_id > after).slice(0, limit);
          return route.fulfill({ json: found.map((client_id) => ({ client_id, ...row })) });
        });
        await page.evaluate(() => { location.hash = "#/clients" });
        const firsts = [];
        for (let turn = 0; turn < 3; turn += 1) {
          await page.waitForSelector(`tbody tr:first-child:has-text("c00${turn}00")`);
          firsts.push(await page.locator("tbody tr").count());
          await page.click("text=Next");
        }
        await page.click("text=Previous");
        await page.waitForSelector("tbody tr:first-child:has-text('c00200')");
        const said = await page.textContent(".pager span");
        await page.unroute("**/api/v1/clients?*");
        return { firsts, said, limits: [...limits] };
        """
    )
    assert told == {"firsts": [100] * 3, "said": "clients 201 to 300", "limits": [100]}


def test_a_queue_with_its_dead_letters_is_looked_through_and_emptied(
    page: Browser, broker: AdminBroker, name: str
) -> None:
    at = f"/queues/op%2F{name}"
    settings: dict[str, Any] = {"partitions": 1, "limits": {"max_queue_depth": 1, "overflow": "drop-head"}}
    broker.told("PUT", at, json=settings)
    for number in range(3):
        broker.told("POST", "/publish", json={"topic": f"$queue/op/{name}", "payload": f"<b>{number}</b>"})
    broker.told("PUT", at, json={"partitions": 1})
    open_page(page, "queues")
    page.run(
        """
        await page.click(`tbody a:text-is("op/${given.name}")`);
        await page.waitForSelector("text=2 dead letters");
        await page.waitForSelector(".explained li");
        await page.click("text=Look at messages");
        await page.waitForSelector("pre:text-is('<b>2</b>')"); // as text
        """,
        name=name,
    )
    assert accessible(page) == []
    assert "2 are back in their queues." in confirm(page, "Redrive all")
    assert broker.told("GET", f"{at}/stats")["messages"] == 3
    page.run("await page.waitForSelector('dd:text-is(\"3 messages\")')")
    assert "Deleted: 3 messages." in confirm(page, "Purge")
    assert broker.told("GET", f"{at}/stats")["messages"] == 0


def test_what_a_token_may_not_is_told(chromium: Browser, broker: AdminBroker, name: str) -> None:
    broker.told("PUT", f"/queues/{name}", json={"partitions": 1})
    log_in(chromium, broker, broker.tokens[Scope.READ])
    chromium.run("await page.waitForSelector(given.entered)", entered=ENTERED)
    open_page(chromium, f"queues/{name}")
    assert "this needs a token with the scope operate, read has read" in confirm(chromium, "Purge")


def test_a_message_is_published_retained_and_deleted(page: Browser, broker: AdminBroker, name: str) -> None:
    topic = f"{name}/ä b/%x"
    open_page(page, "publish")
    page.run(
        """
        await page.waitForSelector(".form");
        await page.getByLabel("Topic").fill(given.topic);
        await page.getByLabel("Payload").fill('{"a":[1]}');
        await page.getByLabel("Retain").check();
        """,
        topic=topic,
    )
    assert accessible(page) == []
    page.run(
        """
        await page.click(".form button");
        await page.waitForSelector(".told .notice.good:has-text('stored')");
        await page.evaluate(() => { location.hash = "#/retained" });
        await page.click(`.tree a:has-text("${given.topic}")`);
        await page.waitForSelector("pre[aria-label=Payload]");
        """,
        topic=topic,
    )
    assert page.run("return page.textContent('pre[aria-label=Payload]')") == '{\n  "a": [\n    1\n  ]\n}'
    assert accessible(page) == []
    assert f"The retained message of {topic} is gone." in confirm(page, "Delete")
    assert broker.told("GET", "/retained") == []


def test_the_pipeline_is_shown(page: Browser) -> None:
    open_page(page, "pipeline")
    page.run("await page.waitForSelector('.state:not(.bad):text-is(\"off\")')")
    assert accessible(page) == []


def test_bans_and_tokens_are_made_and_taken_back_and_all_of_it_is_in_the_audit_trail(
    page: Browser, broker: AdminBroker, name: str
) -> None:
    open_page(page, "bans")
    page.run(
        """
        await page.getByLabel("Whom").fill(given.name);
        await page.getByLabel("For how long").fill("1h");
        await page.getByLabel("Reason").fill("floods");
        await page.getByRole("button", { name: "Ban", exact: true }).click();
        await page.waitForSelector(`th:has-text("${given.name}")`);
        """,
        name=name,
    )
    assert accessible(page) == []
    assert [(one["kind"], one["value"]) for one in broker.told("GET", "/bans")] == [("client_id", name)]
    assert f"The ban of {name} is lifted." in confirm(page, "Lift")
    assert broker.told("GET", "/bans") == []

    open_page(page, "tokens")
    token = page.run(
        """
        await page.getByLabel("Name of the token").fill(given.name);
        await page.getByRole("button", { name: "Make token" }).click();
        return page.textContent(".notice.good code");
        """,
        name=name,
    )
    assert accessible(page) == []
    headers = {"authorization": f"Bearer {token}"}
    assert httpx.get(f"{broker.url}/clients", headers=headers, timeout=30).status_code == 200
    broker.told("DELETE", f"/tokens/{name}")

    open_page(page, "audit")
    shown = page.run(
        """
        await page.waitForSelector(`td:has-text("${given.name}")`);
        return page.textContent("table");
        """,
        name=name,
    )
    assert accessible(page) == []
    for operation in ("PutBan", "LiftBan", "CreateToken", "RevokeToken"):
        assert operation in shown, shown
    assert token not in shown


def test_accounts_are_made_and_taken_away_and_rules_are_asked(
    page: Browser, broker: AdminBroker, name: str
) -> None:
    open_page(page, "accounts")
    told = page.run(
        """
        await page.getByLabel("Name of the account").fill(given.name);
        await page.click("text=Add account");
        await page.waitForSelector(`tbody th:text-is("${given.name}")`);
        return page.textContent(".notice code");
        """,
        name=name,
    )
    assert len(told) > 16
    assert accessible(page) == []
    assert f"The account {name} is disabled." in confirm(page, "Disable")
    (account,) = broker.told("GET", "/accounts")
    assert (account["name"], account["disabled"]) == (name, True)
    assert f"The account {name} is gone." in confirm(page, "Remove")
    assert broker.told("GET", "/accounts") == []
    open_page(page, "rules")
    page.run(
        """
        await page.getByLabel("Topic or filter").fill("a/b");
        await page.click("text=Check");
        await page.waitForSelector(".form .notice.good:has-text('Allowed')");
        """
    )
    assert accessible(page) == []


def test_parked_messages_are_looked_through_sent_again_and_deleted(
    page: Browser, broker: AdminBroker, name: str
) -> None:
    """What is parked is made up here, in the form of the API; the broker is asked to act, and has nothing parked."""
    client_id = f"{name}/1 ?"
    about = ParkedView(
        number=7, topic=f"{name}/t", qos=1, retain=False, payload_bytes=3, parked="2026-01-01T00:00:00+00:00",
        attempts=4, state="parked", received=False,
    )  # fmt: skip
    detail = ParkedDetail(
        about=about, publisher="p", accepted=about.parked, expires=None, properties={}, payload="<b>"
    )

    async def kept() -> None:
        client = MqttClient(client_id)
        await client.connect(broker.port, expiry_s=3_600)
        client.abort()
        await client.ended

    run(kept())
    assert broker.told("GET", "/parked/clients") == []
    open_page(page, "parked")
    page.run("await page.waitForSelector('text=No message is parked.')")
    page.run(
        """
        await page.route("**/api/v1/parked**", (route) => {
          const url = new URL(route.request().url());
          if (route.request().method() !== "GET") {
            return route.continue();
          }
          const what = url.pathname.split("/api/v1/parked")[1];
          return route.fulfill({ json: given.answers[what] });
        });
        await page.reload();
        await page.click(`tbody a:text-is("${given.id}")`);
        await page.waitForSelector("td:text-is('3 B')");
        """,
        id=client_id,
        answers=msgspec.to_builtins(
            {
                "/clients": [ParkedClientView(client_id=client_id, messages=2, parked=1)],
                "": [about],
                "/message": detail,
            }
        ),
    )
    assert accessible(page) == []
    assert "Sent again when the client is there: 0 messages." in confirm(page, "Redrive all")
    page.run(
        """
        await page.click(`tbody a:text-is("${given.topic}")`);
        await page.waitForSelector("pre:text-is('<b>')"); // as text
        """,
        topic=about.topic,
    )
    assert accessible(page) == []
    assert "The message was deleted." in confirm(page, "Delete")
    page.run("await page.unroute('**/api/v1/parked**')")
    changes = broker.told("GET", "/audit?limit=2")
    assert [(one["operation"], one["object"]) for one in changes] == [
        ("DeleteParked", {"client_id": client_id, "number": [7]}),
        ("RedriveParked", {"client_id": client_id}),
    ]


def test_nodes_of_the_cluster_are_shown(page: Browser, broker: AdminBroker) -> None:
    (alone,) = broker.told("GET", "/cluster")["nodes"]
    open_page(page, "cluster")
    page.run(
        """
        await page.waitForSelector("text=This broker serves alone");
        await page.waitForSelector(`th:text-is("${given.node} (this one)")`);
        """,
        node=alone["about"]["node"],
    )
    assert accessible(page) == []
    about = NodeAbout(
        node="n2", version="0.1.0", started="2026-01-01T00:00:00+00:00", host="h2", listen="h2:7400"
    )
    other = NodeView(about=about, epoch=9, lease_left_s=4.5, slots=())
    told = page.run(
        """
        await page.route("**/api/v1/cluster", (route) => route.fulfill({ json: given.view }));
        await page.reload();
        await page.waitForSelector("th:text-is('n2')");
        const told = await page.textContent("main");
        await page.unroute("**/api/v1/cluster");
        return told;
        """,
        view={
            "name": "plant",
            "place": "etcd://h1:2379",
            "nodes": [alone, msgspec.to_builtins(other) | {"figures": None}],
        },
    )
    assert "etcd://h1:2379" in told and "stands by" in told and "4.5 s" in told and "This broker" not in told
    page.run("await page.reload()")


def test_a_client_in_the_page_subscribes_and_publishes(page: Browser, broker: AdminBroker, name: str) -> None:
    open_page(page, "mqtt")
    page.run(
        """
        await page.click("text=Connect");
        await page.waitForSelector(".state:text-is('connected')");
        await page.getByLabel("Topic filter").fill(`${given.name}/#`);
        await page.getByRole("button", { name: "Subscribe" }).click();
        await page.waitForSelector(`.notice.good:has-text("Subscribed to ${given.name}/# with QoS 1.")`);
        await page.getByLabel("Topic", { exact: true }).fill(`${given.name}/ä`);
        await page.getByLabel("Payload").fill("<b>1</b>");
        await page.getByRole("button", { name: "Publish", exact: true }).click();
        await page.waitForSelector(`.notice.good:has-text("The broker has the message to ${given.name}/ä.")`);
        await page.waitForSelector("td span:text-is('<b>1</b>')"); // as text
        """,
        name=name,
    )
    assert accessible(page) == []
    large = "x" * 200_000
    broker.told("POST", "/publish", json={"topic": f"{name}/large", "payload": large})
    page.run("await page.waitForSelector('td:text-is(\"195 KiB\")')")
    (client,) = broker.told("GET", "/clients?match=dashboard-*")
    broker.told("DELETE", f"/clients/{client['client_id']}/connection")
    page.run("await page.waitForSelector(\".notice.bad:has-text('ended by an operator')\")")


def test_the_page_says_what_its_client_lacks(page: Browser, broker: AdminBroker) -> None:
    open_page(page, "mqtt")
    page.run(
        """
        await page.getByLabel("Path").fill("/elsewhere");
        await page.click("text=Connect");
        await page.waitForSelector(".notice.bad:has-text('websocket.origins')");
        await page.route("**/api/v1/broker", (route) => route.fulfill({ json: given.view }));
        await page.reload();
        await page.waitForSelector(".notice:has-text('set listeners.ws')");
        await page.unroute("**/api/v1/broker");
        """,
        view=broker.told("GET", "/broker") | {"listeners": {"mqtt": ["127.0.0.1:1883"]}},
    )
