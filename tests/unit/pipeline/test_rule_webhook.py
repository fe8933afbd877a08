"""Rows of a rule as HTTP requests: at least once, in order, each with its id; secrets are in no error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pyspark.sql import Row
from tests.support.rule_door import StandInDoor
from tests.support.rule_receiver import RuleReceiver, receiving

from embermq.app.config import load_configuration
from embermq.cli.main import main
from embermq.pipeline.errors import PipelineSettingsError, RuleError
from embermq.pipeline.rules import webhook
from embermq.pipeline.rules.set_aside import ROWS_MAX, SetAside, set_aside_of
from embermq.pipeline.rules.settings import RuleSettings, check_rules
from embermq.pipeline.rules.targets import NumberedRow
from embermq.pipeline.rules.webhook import WebhookTarget


@pytest.fixture
def receiver() -> Iterator[RuleReceiver]:
    with receiving() as found:
        yield found


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """What a test has opened is closed when it is over."""
    yield
    while OPENED:
        OPENED.pop().close()


OPENED: list[WebhookTarget | SetAside] = []


def target(tmp_path: Path, url: str, headers_file: str = "") -> WebhookTarget:
    rule = RuleSettings(sql="SELECT", to="webhook", url=url, headers_file=headers_file)
    check_rules({"hot": rule})
    aside = SetAside(tmp_path / "rules.db", "hot")
    made = WebhookTarget("hot", rule, StandInDoor(tmp_path), aside, lambda: 77)
    OPENED.extend((made, aside))
    made.open()
    return made


def rows(*offsets: int) -> list[NumberedRow]:
    return [
        (offset * ROWS_MAX, Row(offset=offset, chain="", topic="", payload=b"%d" % offset))
        for offset in offsets
    ]


def test_each_row_is_sent_in_order_with_its_id_on_one_connection(
    tmp_path: Path, receiver: RuleReceiver
) -> None:
    headers = tmp_path / "headers"
    headers.write_text("# for the receiver\nAuthorization: Bearer s3cret\n")
    hook = target(tmp_path, receiver.url, headers_file=str(headers))
    assert not hook.next
    hook.begin({0: 5 * ROWS_MAX, 1: 0})
    assert hook.put(0, rows(5, 6, 9)) == 3
    bearer = "Bearer s3cret"
    assert receiver.got == [
        (f"hot:77:0:{number}:0", "/secret-path?key=1", b"%d" % number, bearer) for number in (5, 6, 9)
    ]
    assert receiver.connections == 1
    hook.move(0, 12 * ROWS_MAX)
    again = target(tmp_path, receiver.url)
    assert again.next == {0: 12 * ROWS_MAX, 1: 0}
    again.begin({0: 0})
    assert again.next == {0: 12 * ROWS_MAX, 1: 0}, "it has begun"
    assert again.put(1, rows(3)) == 1
    assert receiver.got[-1][0] == "hot:77:1:3:0" and again.next[1] == 3 * ROWS_MAX + 1


def test_what_is_not_answered_is_sent_again_and_what_is_refused_is_set_aside(
    tmp_path: Path, receiver: RuleReceiver
) -> None:
    hook = target(tmp_path, receiver.url)
    hook.begin({0: 0})
    receiver.statuses = [200, 503]
    with pytest.raises(RuleError, match="answers with status 503"):
        hook.put(0, rows(1, 2, 3))
    assert hook.next == {0: ROWS_MAX + 1} == target(tmp_path, receiver.url).next
    receiver.statuses = [422, 0]
    assert hook.put(0, rows(2, 3)) == 1, "a connection that was closed is opened once more"
    assert [int(body) for _, _, body, _ in receiver.got] == [1, 2, 2, 3, 3]
    (aside,) = set_aside_of(tmp_path / "rules.db", "hot", 10)
    assert (aside.offset, aside.what, aside.reason) == (2, "refused", "status 422")


def test_no_redirect_is_followed_and_no_secret_is_told(tmp_path: Path, receiver: RuleReceiver) -> None:
    hook = target(tmp_path, receiver.url)
    hook.begin({0: 0})
    for status, why in ((302, "redirects are not followed"), (404, "status 404")):
        receiver.statuses = [status]
        with pytest.raises(RuleError, match=why) as refused:
            hook.put(0, rows(1))
        assert "secret" not in str(refused.value) and "key" not in str(refused.value)
    assert len(receiver.got) == 2 and hook.next == {0: 0}
    away = target(tmp_path, "http://127.0.0.1:1/secret-path")
    with pytest.raises(RuleError, match="does not answer: ") as refused:
        away.put(0, rows(1))
    assert "secret" not in str(refused.value)
    bad = tmp_path / "headers"
    bad.write_text("X-Key: s3cret\nAuthorization s3cret\n")
    with pytest.raises(RuleError, match=r"line 2: is no NAME: VALUE") as refused:
        target(tmp_path, receiver.url, headers_file=str(bad))
    assert "s3cret" not in str(refused.value)


def test_an_answer_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "WHOLE_TIMEOUT_S", 0.2)
    stopping = threading.Event()

    class Drips(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            while not stopping.wait(0.05):
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                """It has been cut off."""

        def log_message(self, *_: object) -> None:
            """Nothing is said."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Drips)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        hook = target(tmp_path, f"http://127.0.0.1:{server.server_address[1]}/")
        hook.begin({0: 0})
        with pytest.raises(RuleError, match="does not answer"):
            hook.put(0, rows(1))
    finally:
        stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"url": ""}, "needs the URL"),
        ({"url": "ftp://host/"}, "http or https"),
        ({"url": "https://user:pw@host/"}, "user and password belong into headers_file"),
        ({"url": "https://host/", "content_type": "a\nb"}, "content_type"),
        ({"url": "https://host/a b"}, "http or https"),
    ],
)
def test_what_no_webhook_can_be(words: dict[str, str], why: str) -> None:
    with pytest.raises(PipelineSettingsError, match=why) as refused:
        check_rules({"hot": RuleSettings(sql="SELECT", to="webhook", **words)})  # type: ignore[arg-type]
    assert "pw" not in str(refused.value)


def test_no_list_of_settings_has_the_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "ember.toml"
    config.write_text(
        '[rules.hot]\nsql = "SELECT 1"\nto = "webhook"\nurl = "https://hooks.example:1/s3cret?k=s3cret"\n'
    )
    shown = {setting.key: setting.value for setting in load_configuration(config_file=config).effective()}
    assert shown["rules.hot.url"] == "https://hooks.example:1"
    for words in (["rules", "list"], ["rules", "list", "--json"], ["check-config"]):
        assert main([*words, "--config", str(config)]) == 0
        told = "".join(capsys.readouterr())
        assert "s3cret" not in told
