"""What the README promises to somebody who has just typed `make run`, with the clients that it names."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from tests.support.broker_process import EMBERMQ, BrokerProcess
from tests.support.measuring import judge
from tests.support.waiting import wait_until

AT_ONCE_S = 5
APPLICATION_S = 60
STOP_S = 5
WAITED_S = 240
"""For any of it, on a machine that others want, too."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # Beside tests that take every core, the usual priority would have Spark give up on its workers.
    settings = {"clients.application_ids": "billing-*", "pipeline.nice": 0}
    with BrokerProcess(
        tmp_path_factory.mktemp("data"), pipeline=True, settings=settings, installed=True
    ) as running:
        yield running


@pytest.fixture(scope="module")
def listen(broker: BrokerProcess) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start mosquitto_sub and return when the broker has its subscription."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        before = measured(broker, "embermq_subscriptions")
        command = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(broker.port), *words]
        listener = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(listener)
        wait_until(lambda: measured(broker, "embermq_subscriptions") > before, 30, "subscribed", poll_s=0.05)
        return listener

    yield start
    for listener in started:
        listener.kill()
        listener.communicate()


def publish(broker: BrokerProcess, topic: str, message: str) -> None:
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(broker.port), "-q", "1"]
    subprocess.run([*command, "-t", topic, "-m", message], check=True, timeout=30)


def fetched(broker: BrokerProcess, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}{path}", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def measured(broker: BrokerProcess, name: str) -> float:
    lines = fetched(broker, "/metrics").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def shown(broker: BrokerProcess) -> dict[str, object]:
    """What `embermq pipeline status --json` says."""
    words = [str(EMBERMQ), "pipeline", "status", "--data-dir", str(broker.data_dir), "--json"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    status: dict[str, object] = json.loads(found.stdout)
    return status


def standing(status: dict[str, object]) -> dict[str, object]:
    """The part of a status that does not move by itself."""
    queries = status["queries"]
    assert isinstance(queries, list)
    fixed = ("name", "state", "mode", "position", "lag_messages", "restarts", "last_error", "totals")
    return {
        **{name: status[name] for name in ("state", "pid", "spark", "java", "log_end", "waiting")},
        "queries": [{name: query[name] for name in fixed} for query in queries],
    }


@pytest.mark.perf
def test_the_first_publish_reaches_the_first_subscriber_at_once(
    broker: BrokerProcess, listen: Callable[..., subprocess.Popen[str]]
) -> None:
    listener = listen("-t", "greetings/#", "-q", "1", "-v", "-C", "1")
    publish(broker, "greetings/world", "hello")
    began = time.monotonic()
    heard, _ = listener.communicate(timeout=WAITED_S)
    judge(time.monotonic() - began, AT_ONCE_S, "s until the first subscriber hears the first publish")
    assert heard == "greetings/world hello\n"


def test_the_start_up_block_shows_what_to_type(broker: BrokerProcess) -> None:
    told = broker.output()
    assert f"mqtt       127.0.0.1:{broker.port}\n" in told
    assert f"mosquitto_sub -p {broker.port} -t 'hello/#' -v\n" in told
    assert str(broker.data_dir) in told
    assert "Traceback" not in told


@pytest.mark.perf
def test_an_application_gets_its_messages_within_a_minute(
    broker: BrokerProcess, listen: Callable[..., subprocess.Popen[str]]
) -> None:
    """What the README says of the first minute, by the installed program with a Spark of its own."""
    client_id = f"billing-{uuid4().hex[:8]}"  # a second try has a session of its own
    subscription = ("-i", client_id, "-c", "-t", "sales/#", "-q", "1")
    listener = listen(*subscription, "-C", "10")
    for number in range(10):
        publish(broker, "sales/berlin", f"{number}")
    began = time.monotonic()
    heard, _ = listener.communicate(timeout=WAITED_S)
    judge(time.monotonic() - began, APPLICATION_S, "s until an application has its messages")
    assert heard.split() == [f"{number}" for number in range(10)]

    for number in range(10, 20):  # it is away
        publish(broker, "sales/berlin", f"{number}")
    command = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(broker.port), *subscription, "-C", "10"]
    back = subprocess.run(command, capture_output=True, text=True, timeout=WAITED_S, check=True)
    assert back.stdout.split() == [f"{number}" for number in range(10, 20)]


def test_status_and_api_agree(broker: BrokerProcess) -> None:
    def asked() -> dict[str, object]:
        status: dict[str, object] = json.loads(fetched(broker, "/api/v1/pipeline"))
        return status

    def is_at_rest() -> bool:
        queries = asked()["queries"]
        return isinstance(queries, list) and all(
            query["state"] == "running" and not query["lag_messages"] for query in queries
        )

    wait_until(lambda: asked()["state"] == "running" and is_at_rest(), 90, "no query is behind", poll_s=0.2)
    assert standing(shown(broker)) == standing(asked())
    expected = {
        "listeners": "open",
        "log": "ok",
        "clock": "ok",
        "pipeline": "running",
        "application_logs": "ok",
    }
    wait_until(
        lambda: json.loads(fetched(broker, "/ready"))["parts"] == expected, 60, f"ready says {expected}"
    )


def test_a_broker_at_rest_leaves_the_disk_alone(broker: BrokerProcess) -> None:
    """Whatever the tests before have set off comes to its end."""
    seen = [measured(broker, "embermq_commits_total")]

    def rests() -> bool:
        seen.append(measured(broker, "embermq_commits_total"))
        return seen[-1] == seen[-2]

    wait_until(rests, 60, "two seconds without a commit", poll_s=2.0)


def test_an_address_without_anything_is_a_problem_document(broker: BrokerProcess) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetched(broker, "/nothing")
    with refused.value as answer:
        assert answer.code == 404
        assert json.loads(answer.read())["detail"] == "there is nothing at /nothing"


def test_a_second_broker_on_the_data_directory_is_refused(broker: BrokerProcess) -> None:
    words = [str(EMBERMQ), "run", "--data-dir", str(broker.data_dir)]
    second = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert second.returncode == 1
    assert second.stderr == (
        f"embermq: the data directory {broker.data_dir} is in use by another broker (process {broker.pid}): "
        "stop that one, or name another directory with --data-dir\n"
    )


@pytest.mark.perf
def test_sigterm_ends_everything_in_time(broker: BrokerProcess) -> None:
    wait_until(lambda: len(broker.descendants()) >= 2, WAITED_S, "the driver and its JVM")
    began = time.monotonic()
    assert broker.stop() == 0
    wait_until(lambda: not broker.descendants(), STOP_S, "no process is left")
    judge(time.monotonic() - began, STOP_S, "SIGTERM with a pipeline, s until no process is left")
    assert not (broker.data_dir / "broker.db-wal").exists(), "nothing is left to be recovered"
    assert shown(broker)["state"] == "down"
