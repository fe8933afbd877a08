"""A broker whose pipeline cannot start: MQTT is served, and everybody who asks is told."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import metric, metrics
from tests.support.waiting import wait_until

ANSWER_S = 60
SEEN_S = 120
TRIES = 3


def ready(broker: BrokerProcess) -> tuple[int, dict[str, Any]]:
    address = f"http://127.0.0.1:{broker.http_port}/ready"
    try:
        with urllib.request.urlopen(address, timeout=ANSWER_S) as answer:
            return answer.status, json.load(answer)["parts"]
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)["parts"]


@pytest.mark.promise("pipeline-14", "pipeline-5")
@pytest.mark.parametrize(("counts", "code"), [("false", 200), ("true", 503)])
def test_a_pipeline_that_fails_is_tried_for_ever_and_told(tmp_path: Path, counts: str, code: int) -> None:
    settings = {
        "pipeline.queries": '["archive"]',
        "pipeline.counts_for_ready": counts,
    }
    narrow = {"embermq.pipeline.settings.RESTARTS_MAX": 0, "embermq.pipeline.settings.BACKOFF_FIRST_MS": 1}
    nowhere = {"SPARK_HOME": str(tmp_path / "nowhere")}
    with BrokerProcess(
        tmp_path / "data", pipeline=True, settings=settings, env=nowhere, constants=narrow
    ) as broker:
        wait_until(lambda: ready(broker)[1]["pipeline"] == "failed", SEEN_S, "it has failed", poll_s=0.1)
        wait_until(lambda: metric(broker, "pipeline_restarts") >= TRIES, SEEN_S, "tried again", poll_s=0.1)
        found, parts = ready(broker)
        assert (found, parts["pipeline"], parts["listeners"]) == (code, "failed", "open")
        wait_until(
            lambda: 'embermq_pipeline_state{state="failed"} 1.0' in metrics(broker), SEEN_S, "a metric"
        )
        assert broker.output().count("keeps failing") == 1
