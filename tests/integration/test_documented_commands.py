"""The commands of the documentation, typed one after the other at one broker, as its readers do.

tests/static/test_typed_commands.py parses all of them; what is left out here says who runs it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.support.broker_process import EMBERMQ, BrokerProcess
from tests.support.forked_program import run_program
from tests.support.mqtt_client import MqttClient, run
from tests.support.typed_commands import FOLDER, ROOT, Block, blocks, joined, parts
from tests.support.typed_commands import PAGES as ALL_PAGES
from tests.support.users import add_users
from tests.support.waiting import wait_until

from embermq.mqtt.wire.packets import Subscription

PAGES = (
    "README.md", "docs/clients.md", "docs/authentication.md", "docs/authorization.md", "docs/scram.md",
    "docs/from-mosquitto.md", "docs/transports.md", "docs/operations.md", "docs/troubleshooting.md", "docs/queues.md",
    "docs/http-api.md",
)  # fmt: skip
PAGES_ELSEWHERE = {
    "docs/pipeline.md": "tests/e2e/test_data_engineer.py types them all, with Spark",
    "docs/rules.md": "tests/e2e/test_data_engineer.py, too",
    "docs/growing.md": "tests/integration/test_import_embedded.py, with Kafka and Redis",
    "docs/migrating.md": "tests/pipeline/test_migrate_command.py, with a source",
    "docs/cluster.md": "tests/e2e/test_certs.py",
    "docs/stores.md": "tests/integration/test_kafka_application_logs.py, with Kafka",
    "client/README.md": "tests/e2e/test_client_package.py",
    "CONTRIBUTING.md": "the Makefile",
    "tests/README.md": "pytest itself",
}
"""Whose commands need more than one broker: who runs them."""
ELSEWHERE = {
    "embermq run": "every test",
    "embermq service": "tests/e2e/test_service.py",
    "embermq pipeline redrive": "tests/pipeline, with Spark",
    "embermq pub -h broker": "tests/integration/test_pub_sub.py, with TLS",
    "embermq sub -h broker": "tests/integration/test_pub_sub.py, with TLS",
    "embermq audit --url": "tests/integration/test_api_tls.py, with TLS",
    "curl -s --cacert": "tests/integration/test_api_tls.py, too",
    "embermq sessions logs": "tests/integration/test_kafka_application_logs.py, with Kafka",
    "embermq sessions parked show": "tests/integration/test_unacknowledged.py, which has parked messages",
    "embermq sessions parked redrive": "tests/integration/test_unacknowledged.py",
    "embermq sessions parked delete": "tests/integration/test_unacknowledged.py",
    "embermq trace": "tests/integration/test_trace.py, which knows an offset",
    "embermq users add billing": "tests/e2e/test_first_minutes.py, with Spark",
    "embermq users copy": "tests/integration/test_sql_servers.py, with another store",
    "embermq acl check --connect": "tests/integration/test_authorization.py, of a session's user",
    "mosquitto_": "tests/e2e/test_first_minutes.py, and with tokens, hooks and sockets test_authentication.py",
    "head": "a secret for tokens",
    "python": "a token, as tests/integration/test_authentication.py makes it",
    "cat": "part of the one before",
    "make": "the Makefile",
    "git": "a clone",
    "cd": "into it",
    "systemctl": "systemd",
    "podman": "make release-check",
    "while": "Mosquitto beside EmberMQ",
    "read": "the same",
    "do": "the same",
    "printf": "the same",
    "basenc": "the same",
    "done": "the same",
    "tail": "a log of Spark's",
}
"""What is not run here, by how it begins: who runs it, or why nobody does."""
PASSWD = (
    "hal:$7$101$H2dPuM/eSwZCQWgQ$"
    "0tEhGiLJQlBhk0lIvYMPMHOSLRXR9/8DWEeaKgcGwlkQw7ZyUkZhCTyQyUrzc0HvtCRYIXpmAnXHPLTn2Zng/Q==\n"
)
PAGE_NAMES = {"authentication": ("carol", "dora"), "operations": ("erin", "fay"), "scram": ("gil", "")}
TIMEOUT_S = 90
ALL_S = 1_500
"""For a machine that does much else: usually it takes a tenth of it."""
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where everything is typed: with the files that pages speak of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{EMBERMQ.parent}:{os.environ['PATH']}")
    (tmp_path / "tasks.txt").write_text("".join(f"task {number}\n" for number in range(10)))
    (tmp_path / "passwd").write_text(PASSWD)
    (tmp_path / "ember.toml").write_text("")
    (tmp_path / "mosquitto.conf").write_text("listener 1883 127.0.0.1\nallow_anonymous true\n")
    rules = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/authorization.md").read_text(), re.DOTALL)
    (tmp_path / "rules.toml").write_text(next(block for block in rules if "meters/%u" in block))
    return tmp_path


def commands(block: Block) -> Iterator[str]:
    """Lines as they are typed, without those that others run; several parts of a pipe are one."""
    for line in joined(block.text):
        told = line.replace(FOLDER, "").partition("  #")[0].strip()
        found = [shlex.join(words) for words in parts(line)] if told else []
        if not found or any(each.replace(FOLDER, "").startswith(tuple(ELSEWHERE)) for each in found):
            continue
        yield told


def filled_in(command: str, page: str, broker: BrokerProcess) -> str:
    """With the names of this place instead of those of the page."""
    name, generated = PAGE_NAMES.get(page, ("tasks", ""))
    for written, here in (
        ("--generate NAME...", f"--generate {generated}"),
        ("disable|enable|remove", "disable"),
        ("device|application", "device"),
        (" NAME", f" {name}"),
        (" FILE", " passwd"),
        ("seq -f 'pump-%g' 10000", "seq -f 'pump-%g' 3"),
        ("/etc/mosquitto/", ""),
        ("/backups/2026-11-21", "backup"),
        ("/backups/2026-12-05", "backup-before"),
        ("/var/lib/embermq", "embermq-data"),
        ("/etc/embermq/", ""),
        ("http://127.0.0.1:8080", f"http://127.0.0.1:{broker.http_port}"),
    ):
        command = command.replace(written, here)
    command = re.sub(r"\[([^\]]*)\]", r"\1", command) if "'" not in command else command
    return re.sub(r"^embermq (pub|sub) ", rf"embermq \1 -p {broker.port} ", command)


def typed(command: str) -> Done:
    """By the shell when it takes more than the program itself."""
    words = shlex.split(command)
    given = "s3cret\n" if re.match(r"embermq users (add|password)", command) else ""
    if words[0] == "embermq" and not {"|", ">", "<", "&&"} & set(words):
        return run_program(*words[1:], stdin=given, timeout_s=TIMEOUT_S)
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def subscriptions(broker: BrokerProcess) -> int:
    shown = httpx.get(f"http://127.0.0.1:{broker.http_port}/metrics").text
    found = re.search(r"^embermq_subscriptions (\S+)$", shown, re.MULTILINE)
    assert found
    return int(float(found[1]))


def test_who_runs_the_others_is_there() -> None:
    told = [*ELSEWHERE.values(), *PAGES_ELSEWHERE.values()]
    named = {ROOT / name for why in told for name in re.findall(r"tests/\w+/\w+\.py", why)}
    assert named and all(path.exists() for path in named)


def test_each_page_with_commands_has_somebody_who_runs_them() -> None:
    with_commands = {str(page.relative_to(ROOT)) for page in ALL_PAGES if list(blocks(page))}
    assert with_commands == {*PAGES, *PAGES_ELSEWHERE}


@pytest.mark.timeout(ALL_S + 90)
def test_commands_of_the_pages_work(place: Path) -> None:
    with BrokerProcess(place / "embermq-data", arguments=["--allow-anonymous"]) as broker:
        add_users(broker.data_dir, "ann")
        run(_typed_all(broker), ALL_S)


def _is_heard(broker: BrokerProcess, before: int, listener: asyncio.Task[Done]) -> bool:
    return subscriptions(broker) > before or listener.done()


async def _typed_all(broker: BrokerProcess) -> None:
    known = [MqttClient(client_id) for client_id in ("pump-7", "billing")]
    for client in known:
        await client.connect(broker.port, expiry_s=3_600)
        await client.subscribe(Subscription(f"own/{client.client_id}", 1))
    number = 0
    for page in PAGES:
        for block in blocks(ROOT / page):
            listening: list[asyncio.Task[Done]] = []
            told = ""
            for written in commands(block):
                command = filled_in(written, Path(page).stem, broker)
                if command.startswith("embermq sub ") and "$queue" not in command:
                    before = await asyncio.to_thread(subscriptions, broker)
                    listening.append(asyncio.create_task(asyncio.to_thread(typed, f"{command} -C 1")))
                    heard = partial(_is_heard, broker, before, listening[-1])
                    await asyncio.to_thread(wait_until, heard, TIMEOUT_S, command)
                    continue
                done = await asyncio.to_thread(typed, command)
                expected = (0, 1) if block.told else (0,)
                assert done.returncode in expected, f"{page}: {command}\n{done.stdout}{done.stderr}"
                told += done.stdout
                number += 1
            for listener in listening:
                done = await listener
                assert done.returncode == 0 and done.stdout, f"{page}: {done.args}\n{done.stderr}"
            if block.told and told:
                assert told == block.told, page
    assert number > 50
    for client in known:
        client.abort()
