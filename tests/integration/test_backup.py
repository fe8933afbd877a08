"""`embermq backup` of a broker that is working, and what a broker on the restored directory knows."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.mqtt_client import MqttClient, run
from tests.support.queue_worker import worker
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Subscription

PUBLISHED_FIRST = 500
IN_FLIGHT = 50
KEPT_S = 3_600
TIMEOUT_S = 60


def typed(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run_program(*words, timeout_s=TIMEOUT_S)


async def away(broker: BrokerProcess, client_id: str, topic: str) -> None:
    """A session that is kept, without its client."""
    client = MqttClient(client_id)
    await client.connect(broker.port, expiry_s=KEPT_S)
    await client.subscribe(Subscription(topic, 1))
    client.abort()
    await client.ended


async def publish_on(client: MqttClient, topic: str, acknowledged: list[int], enough: asyncio.Event) -> None:
    """Numbered messages, some at a time, until told to stop."""
    number = 0
    while not enough.is_set():
        batch = range(number, number + IN_FLIGHT)
        await asyncio.gather(*(client.publish(topic, b"%d" % one, qos=1) for one in batch))
        number += IN_FLIGHT
        acknowledged.extend(batch)


async def returned(broker: BrokerProcess, client_id: str, at_least: int) -> list[int]:
    """What the absent client is given when it comes back, in order."""
    client = MqttClient(client_id)
    connack = await client.connect(broker.port, clean_start=False, expiry_s=KEPT_S)
    assert connack.session_present
    await wait_for(lambda: len(client.messages) >= at_least, 30, f"{at_least} messages")
    client.abort()
    await client.ended
    return [int(message.payload) for message in client.messages]


def test_a_backup_under_load_has_all_that_was_acknowledged_before_it(
    own_broker: BrokerProcess, tmp_path: Path
) -> None:
    saved, restored_dir = tmp_path / "saved", tmp_path / "restored"
    before: list[int] = []

    async def scenario() -> None:
        await away(own_broker, "absent", "load/#")
        publisher = MqttClient("publisher")
        await publisher.connect(own_broker.port)
        assert await publisher.publish("kept/topic", b"retained", qos=1, retain=True) in (0, 0x10)
        acknowledged: list[int] = []
        enough = asyncio.Event()
        publishing = asyncio.create_task(publish_on(publisher, "load/one", acknowledged, enough))
        await wait_for(lambda: len(acknowledged) >= PUBLISHED_FIRST, 30, "the first messages")
        before.extend(acknowledged)
        done = await asyncio.to_thread(typed, "backup", saved, "--data-dir", own_broker.data_dir)
        assert done.returncode == 0, done.stderr
        assert len(acknowledged) > len(before), "nothing was published meanwhile"
        enough.set()
        await publishing
        publisher.abort()
        await publisher.ended

    async def after(broker: BrokerProcess) -> None:
        numbers = await returned(broker, "absent", len(before))
        assert numbers[: len(before)] == before
        assert numbers == list(range(len(numbers)))
        reader = MqttClient("reader")
        await reader.connect(broker.port)
        await reader.subscribe(Subscription("kept/#", 1))
        await wait_for(lambda: bool(reader.messages), 30, "the retained message")
        found = reader.messages[0]
        assert (found.payload, found.retain) == (b"retained", True)
        reader.abort()
        await reader.ended

    own_broker.settings["device.queue_limit"] = 60_000
    own_broker.start()
    run_program("users", "add", "ann", "--data-dir", own_broker.data_dir, stdin="secret\n").check_returncode()
    run(scenario())
    own_broker.stop()

    done = typed("restore", saved, "--data-dir", restored_dir)
    assert done.returncode == 0, done.stderr
    assert "ann" in typed("users", "list", "--data-dir", restored_dir).stdout
    assert not any(path.stat().st_mode & 0o077 for path in restored_dir.iterdir())
    with BrokerProcess(restored_dir, settings=own_broker.settings) as broker:
        run(after(broker))


@pytest.fixture
def saved(own_broker: BrokerProcess, tmp_path: Path) -> Path:
    """A small backup."""
    own_broker.start()
    target = tmp_path / "saved"
    done = typed("backup", target, "--data-dir", own_broker.data_dir)
    assert done.returncode == 0, done.stderr
    return target


def test_what_is_damaged_or_unfinished_is_not_restored(saved: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    whole = (saved / "broker.db").read_bytes()
    (saved / "broker.db").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    damaged = typed("restore", saved, "--data-dir", fresh)
    assert damaged.returncode == 1 and "broker.db is damaged" in damaged.stderr
    assert not fresh.exists()

    (saved / "broker.db").unlink()
    missing = typed("restore", saved, "--data-dir", fresh)
    assert missing.returncode == 1 and "broker.db is missing" in missing.stderr

    (saved / "broker.db").write_bytes(whole)
    manifest = json.loads((saved / "backup.json").read_text())
    manifest["files"][0]["name"] = "../broker.db"
    (saved / "backup.json").write_text(json.dumps(manifest))
    outside = typed("restore", saved, "--data-dir", fresh)
    assert outside.returncode == 1 and "'../broker.db' is not inside the backup" in outside.stderr

    (saved / "backup.json").unlink()
    unfinished = typed("restore", saved, "--data-dir", fresh)
    assert unfinished.returncode == 1 and "is not a finished backup" in unfinished.stderr
    assert not fresh.exists()


def test_tokens_and_the_secret_of_alerts_hold_on_a_restored_broker(
    own_broker: BrokerProcess, tmp_path: Path
) -> None:
    """Both are files beside the databases, for their owner's eyes alone, in the backup as well."""
    own_broker.start()
    made = typed("tokens", "create", "dashboard", "--data-dir", own_broker.data_dir)
    secret = own_broker.data_dir / "webhook.secret"
    secret.touch(0o600)
    secret.write_text("5" * 64)
    (own_broker.data_dir / "audit.key").touch(0o600)
    saved, restored_dir = tmp_path / "saved", tmp_path / "restored"
    for words in (
        ("backup", saved, "--data-dir", own_broker.data_dir),
        ("restore", saved, "--data-dir", restored_dir),
    ):
        done = typed(*words)
        assert done.returncode == 0, done.stderr
    for folder in (saved, restored_dir):
        for name in ("api-tokens.json", "webhook.secret", "audit.key"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, (folder, name)
    assert (restored_dir / "webhook.secret").read_text() == "5" * 64
    with BrokerProcess(restored_dir, settings=own_broker.settings) as broker:
        place = f"http://127.0.0.1:{broker.http_port}/api/v1/queues"
        assert httpx.get(place, timeout=TIMEOUT_S).status_code == 401
        shown = {"Authorization": f"Bearer {made.stdout.strip()}"}
        assert httpx.get(place, headers=shown, timeout=TIMEOUT_S).json() == []


@pytest.mark.promise("queues-21")
def test_ids_that_messages_got_after_the_backup_are_not_given_to_others(
    own_broker: BrokerProcess, tmp_path: Path
) -> None:
    """Who remembers the ids of what was done would leave others out."""

    def ids_with_another(broker: BrokerProcess, queue: str) -> list[str]:
        async def publishes() -> None:
            client = await worker(broker, "sender-1")
            await client.enqueues(f"$queue/{queue}", b"m")
            client.close()

        run(publishes())
        place = f"http://127.0.0.1:{broker.http_port}/api/v1/queues/{queue}/messages"
        return [one["about"]["id"] for one in httpx.get(place, timeout=TIMEOUT_S).json()]

    own_broker.start()
    before = ids_with_another(own_broker, "old")
    saved = tmp_path / "saved"
    assert typed("backup", saved, "--data-dir", own_broker.data_dir).returncode == 0
    own_broker.stop()
    own_broker.start()
    given = {*ids_with_another(own_broker, "old"), *ids_with_another(own_broker, "made")}
    assert len(given) == 3
    for name in ("restored", "restored again"):
        done = typed("restore", saved, "--data-dir", tmp_path / name)
        assert done.returncode == 0, done.stderr
        with BrokerProcess(tmp_path / name, settings=own_broker.settings) as broker:
            kept, *others = [*ids_with_another(broker, "old"), *ids_with_another(broker, "new")]
            assert [kept] == before and len(others) == 2
            assert not given & set(others)
            given |= set(others)


def test_nothing_that_is_there_is_overwritten(saved: Path, own_broker: BrokerProcess, tmp_path: Path) -> None:
    again = typed("backup", saved, "--data-dir", own_broker.data_dir)
    assert again.returncode == 1 and "is there already and is not an empty directory" in again.stderr
    onto_live = typed("restore", saved, "--data-dir", own_broker.data_dir)
    assert onto_live.returncode == 1 and "is not an empty directory" in onto_live.stderr
    inside = typed("backup", own_broker.data_dir / "copy", "--data-dir", own_broker.data_dir)
    assert inside.returncode == 2 and "is inside the data directory" in inside.stderr
    nowhere = typed("backup", tmp_path / "other", "--data-dir", tmp_path / "nothing")
    assert nowhere.returncode == 1 and "is not the data directory of a broker" in nowhere.stderr
    assert not (tmp_path / "other").exists()


def test_an_empty_directory_may_be_the_target_and_stays_when_it_fails(saved: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "mounted"
    fresh.mkdir()
    (saved / "broker.db").write_bytes(b"no database")
    assert typed("restore", saved, "--data-dir", fresh).returncode == 1
    assert fresh.is_dir() and not any(fresh.iterdir())
