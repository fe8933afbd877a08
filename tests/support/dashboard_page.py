"""The dashboard as tests of it look at it and use it."""

from __future__ import annotations

from typing import Any

from tests.support.broker_process import BrokerProcess
from tests.support.browser import Browser

PHONE = {"width": 390, "height": 800}
DESK = {"width": 1280, "height": 900}


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


def confirm(page: Browser, button: str) -> str:
    """Press it, say yes; what the page tells then."""
    told = page.run(
        """
        await page.evaluate(() => document.querySelector(".told button")?.click());
        await page.getByRole("button", { name: given.button, exact: true }).first().click();
        await page.click("dialog[open] button[value=yes]");
        await page.waitForSelector(".told .notice");
        return page.textContent(".told .notice span");
        """,
        button=button,
    )
    return str(told)
