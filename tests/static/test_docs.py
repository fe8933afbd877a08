"""The documentation against the source: links, anchors, metric names, commands."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tests.support.pipeline_statuses import pipeline_status, query_status

from embermq.access.authorization.rules_file import read_rules
from embermq.app.config import load_configuration
from embermq.app.queue_file import read_queue_file
from embermq.cli import packaged
from embermq.cli.main import COMMANDS
from embermq.cluster.slots import ClusterStatistics
from embermq.durability.retention import Pin, RetentionState
from embermq.edge.clock import ClockStatistics
from embermq.edge.mqtt_server import ServerStatistics
from embermq.edge.tick_loop import TickStatistics
from embermq.model.counters import Counters
from embermq.model.durations import DurationCounts
from embermq.observability.metric_help import HELP, help_of
from embermq.observability.metrics import Metrics, MetricsSnapshot
from embermq.pipeline.supervisor import SupervisorStatistics
from embermq.ports.dead_letter_alerts import AlertStatistics
from embermq.ports.receipt_log import ReceiptStatistics
from embermq.ports.state_writer import SessionStoreStatistics
from embermq.sessions.quotas import Quotas
from embermq.sessions.settings import MqttSettings

ROOT = Path(__file__).resolve().parents[2]
FRONT = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = sorted([*FRONT, *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
ONLY_OF_ONE_LISTENER = re.compile(r"\[listener\.\"([^\"]+)\"\]")
SETTING = re.compile(r"`([a-z_]+)\.([a-z0-9_]+)(?: = [^`]*)?`")
NO_SETTINGS = {"grpc.sock", "redis.asyncio", "redis.conf", "webhook.secret"}
"""Files, and a module, whose names look like settings."""
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Headings as GitHub names them."""
    names = (heading.lower().replace("`", "") for heading in HEADING.findall(page.read_text()))
    return {re.sub(r"[^\w\- ]", "", name).strip().replace(" ", "-") for name in names}


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, ROOT / "scripts" / "site", "--to", tmp_path / "docs"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    site = tmp_path / "docs" / "site"
    loaded = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*(?:src|href)=["'](https?:)?//""")
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text()), page
    assert "what they promise" in (site / "search.json").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_commands_exist(page: Path) -> None:
    for link in LINK.findall(" ".join(page.read_text().split("\n"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link} does not exist"
        if anchor:
            assert anchor in anchors(target), f"{link}: there is no such heading"
    for command in re.findall(r"(?:bin/|`)embermq ([a-z][a-z-]+)", page.read_text()):
        assert command in {*COMMANDS, *packaged.PACKAGES[packaged.COMMANDS]}


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent.name != "decisions"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_settings_exist(page: Path) -> None:
    """Whatever a page calls by the name of a section and of a setting can be set. Decisions tell of former ones."""
    known = {setting.key for setting in load_configuration().effective()}
    sections = {key.partition(".")[0] for key in known if "." in key}
    named = {
        f"{section}.{name}" for section, name in SETTING.findall(page.read_text()) if section in sections
    }
    assert named <= known | NO_SETTINGS


def test_examples_take_over_no_client_of_the_readme() -> None:
    """Whoever has followed it has a session of such an id: a program that connects under it would end that."""
    used = set(re.findall(r"mosquitto_sub .*-i ([a-z]+-)", (ROOT / "README.md").read_text()))
    taken = {
        name
        for program in (ROOT / "examples").rglob("*.py")
        for name in re.findall(r"client_id=f?\"([a-z]+-)", program.read_text())
    }
    assert used
    assert not used & taken


SETTINGS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", SETTINGS)
def test_examples_of_settings_are_valid(block: str, tmp_path: Path) -> None:
    if "[[rule]]" in block:
        assert read_rules(block, "rules.toml")
        return
    if "[[queues]]" in block:
        queues = tmp_path / "queues.toml"
        queues.write_text(block)
        assert read_queue_file(str(queues))
        return
    listeners = ONLY_OF_ONE_LISTENER.search(block)
    if listeners is not None and "[listeners]" not in block:
        block += f'\n[listeners]\nmqtts = "{listeners[1]}"\n[tls]\ncert = "server.pem"\n'
    config = tmp_path / "example.toml"
    config.write_text(block)
    assert load_configuration(config_file=config).origins


@cache
def metrics_text() -> str:
    """What a broker answers whose parts all have something to say."""
    none = DurationCounts()
    pipeline = pipeline_status(query_status("dispatch"))
    retention = RetentionState(
        start_offset=0,
        end_offset=0,
        body_bytes=0,
        parked_bytes=0,
        pins=(Pin("dispatcher", 0),),
        over_limit=False,
        refuse_all=False,
        refused_generations=frozenset(),
        dropped=0,
        near=("lake",),
    )
    return Metrics().text(
        MetricsSnapshot(
            counters=Counters(),
            build={"version": "0.1.0"},
            refusals={"http": {"timeout": 0}},
            connections=0,
            sessions=0,
            sessions_loaded=0,
            sessions_behind=0,
            cluster=ClusterStatistics(copied=0, delivered=0, refused=0, unsent=0, member_links=0),
            quotas=Quotas(MqttSettings(), Counters()),
            subscriptions=0,
            retained=0,
            application_readers=0,
            application_lost=0,
            application_parked=0,
            ticks=TickStatistics(0, none, none, (none, none), none, ""),
            clock=ClockStatistics(0, 0),
            server=ServerStatistics({"mqtt": 0}, 0, 0, 0, 0),
            retention=retention,
            pipeline=pipeline,
            supervisor=SupervisorStatistics("running", 1, 0, ""),
            session_store=SessionStoreStatistics("", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
            alerts=AlertStatistics(sent=0, failed=0, refused=0, dropped=0, waiting=0),
            receipts=ReceiptStatistics(0, 0, 0),
        )
    )


def test_the_page_of_metrics_explains_every_one() -> None:
    explained = re.findall(r"^\| `(embermq_\w+)", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    shown = re.findall(r"^# TYPE (embermq_\w+) ", metrics_text(), re.MULTILINE)
    assert sorted(explained) == sorted(shown)


@pytest.mark.parametrize("page", ["deploy/grafana/embermq.json", "deploy/prometheus/embermq-rules.yml"])
def test_board_and_alerts_ask_for_metrics_that_there_are(page: str) -> None:
    text = re.sub(r"embermq-rules|alert: \w+", "", (ROOT / page).read_text())
    asked = set(re.findall(r"\b(embermq_\w+?)(?:_bucket|_total)?\b(?=[{\[ ])", text))
    assert len(asked) > 10
    kinds = re.findall(r"^# TYPE (embermq_\w+?)(?:_total)? ", metrics_text(), re.MULTILINE)
    assert asked - set(kinds) == set()


def test_the_page_of_metrics_names_every_alert() -> None:
    alerts = re.findall(r"alert: (\w+)", (ROOT / "deploy/prometheus/embermq-rules.yml").read_text())
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert [alert for alert in alerts if f"`{alert}`" not in page] == []


def test_every_metric_has_a_help_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker shows the name instead, since a missing text is no reason to be without metrics."""
    assert help_of("one_without") == "one without"
    monkeypatch.setattr("embermq.observability.metrics.help_of", HELP.__getitem__)
    assert metrics_text.__wrapped__()


def test_every_help_text_is_of_a_metric() -> None:
    shown = dict(re.findall(r"^# HELP embermq_(\w+?)(?:_total)? (.*)$", metrics_text(), re.MULTILINE))
    assert {name: shown.get(name) for name in HELP} == HELP


NOT_OURS = {
    "Address already in use",
    "No space left on device",
    "file is not a database",
    "certificate has expired",
    "unable to get",
    "Python worker failed to connect back",
    "client login failed",  # of an event's name
    "cannot read the schema version in",  # of two texts
}
"""Words of the system and of libraries, and what is put together."""
WORDS = re.compile(r"[A-Za-z]+(?:[ ,;']+[a-z]+){2,}")


@cache
def texts_of_the_source() -> str:
    """Every string of the broker, one behind the other."""
    nodes = (node for path in (ROOT / "src").rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    values = (node.value for node in nodes if isinstance(node, ast.Constant))
    texts = (value.decode(errors="replace") if isinstance(value, bytes) else value for value in values)
    return " ".join(" ".join(text for text in texts if isinstance(text, str)).split())


def test_troubleshooting_quotes_what_the_broker_says() -> None:
    """Users search the page for the words that they see: at least three in a row, up to a part that changes."""
    page = re.sub(r"```.*?```", "", (ROOT / "docs/troubleshooting.md").read_text(), flags=re.DOTALL)
    pieces = {
        " ".join(piece.split()).strip(" ,;")
        for quoted in re.findall(r"`([^`]+)`", page)
        for piece in re.split(r"…|: |[0-9]+|\"", quoted)
    }
    said = {
        piece for piece in pieces - NOT_OURS if WORDS.fullmatch(piece) and not piece.startswith("embermq")
    }
    assert len(said) > 50
    assert sorted(piece for piece in said if piece not in texts_of_the_source()) == []


def test_architecture_names_every_room_and_what_is_in_it() -> None:
    source, page = ROOT / "src/embermq", (ROOT / "docs/architecture.md").read_text()
    rooms = set(re.findall(r"^\| `([a-z_]+)/", page, re.MULTILINE))
    there = {path.parent.name for path in source.glob("*/__init__.py")}
    assert there <= rooms
    for file, functions in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`((?:, `[a-z_]+`)*)", page):
        text = (source / file).read_text()
        for function in re.findall(r"`([a-z_]+)`", functions):
            assert f"def {function}(" in text, f"{file}: {function}"
