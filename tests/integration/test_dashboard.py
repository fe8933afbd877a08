"""The dashboard in Chromium, on a real broker: one browser and one page for the whole file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.admin_broker import AdminBroker
from tests.support.broker_process import BrokerProcess
from tests.support.browser import Browser, browser
from tests.support.foreign_clients import ROOT

from embermq.admin.access import Scope

PAGE = ROOT / "src" / "embermq" / "admin" / "page"
BYTES_MAX = 200_000
ENTERED = "nav#menu"
PHONE = {"width": 390, "height": 800}
DESK = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def packages() -> None:
    built = subprocess.run(
        [ROOT / "scripts" / "foreign-clients", "--check"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminBroker]:
    with AdminBroker(tmp_path_factory.mktemp("dashboard")) as running:
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


def address(broker: BrokerProcess) -> str:
    return f"http://127.0.0.1:{broker.http_port}/"


def log_in(chromium: Browser, broker: BrokerProcess, token: str) -> None:
    """From a tab that knows nothing yet."""
    chromium.run(
        """
        page = await fresh();
        await page.goto(given.address);
        await page.fill("input[type=password]", given.token);
        await page.keyboard.press("Enter");
        """,
        address=address(broker),
        token=token,
    )


def open_page(page: Browser, place: str) -> None:
    page.run("await page.evaluate((to) => { location.hash = to }, given.place)", place=f"#/{place}")


def accessible(page: Browser) -> list[Any]:
    """What axe-core finds, its colours in the dark too, and whether a phone has to scroll sideways."""
    found = page.run(
        """
        const found = [];
        for (const [colorScheme, runOnly] of [["dark", ["color-contrast"]], ["light", undefined]]) {
          await page.emulateMedia({ colorScheme });
          await page.evaluate(axe);
          const { violations } = await page.evaluate((runOnly) => axe.run(runOnly ? { runOnly } : {}), runOnly);
          for (const { id, nodes } of violations) {
            found.push([colorScheme, id, nodes.map(({ html }) => html)]);
          }
        }
        await page.setViewportSize(given.phone);
        if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)) {
          found.push("wider than a phone");
        }
        await page.setViewportSize(given.desk);
        return found;
        """,
        desk=DESK,
        phone=PHONE,
    )
    assert isinstance(found, list)
    return found


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
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = httpx.get(
            address(broker) + path, headers={"if-none-match": answer.headers["etag"]}, timeout=30
        )
        assert (again.status_code, again.content) == (304, b"")


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


def test_a_lost_connection_is_shown_and_taken_up_again(page: Browser, broker: AdminBroker) -> None:
    page.run("await page.waitForSelector('.tile b:has-text(\"MiB\")')")
    broker.kill()
    told = page.run(
        """
        await page.waitForSelector(".notice.bad:has-text('No answer from the broker since')");
        await page.waitForSelector(".notice.bad:has-text('Next attempt at')");
        return page.textContent(".tile b");
        """
    )
    assert told == "0"  # what was there stays
    broker.start()
    page.run(
        "await page.click('text=Try now'); await page.waitForSelector('.notice.bad', { state: 'detached' })"
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
