"""A broker whose settings want nothing of Spark: none is started before an APPLICATION client comes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.test_pipeline_down import SEEN_S, ready
from tests.integration.test_query_behind import MIB, publish
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import metrics
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_until

from embermq.pipeline.places import Places
from embermq.pipeline.status import NO_APPLICATION, read_status

BUDGET_MIB = 16


@pytest.mark.promise("pipeline-5", "pipeline-13")
def test_spark_starts_with_the_first_application_and_nothing_is_kept_for_it_before(tmp_path: Path) -> None:
    settings = {
        "log.disk_budget_bytes": BUDGET_MIB * MIB,
        "log.retention_bytes": BUDGET_MIB * MIB // 4,
        "pipeline.queries": '["dispatch"]',
        "clients.application_ids": "billing-*",
    }
    nowhere = {"SPARK_HOME": str(tmp_path / "nowhere")}
    with BrokerProcess(tmp_path / "data", pipeline=True, settings=settings, env=nowhere) as broker:
        publish(broker, 1)
        wait_until(lambda: 'embermq_pipeline_state{state="waiting"} 1.0' in metrics(broker), SEEN_S, "a look")
        code, parts = ready(broker)
        assert (code, parts["pipeline"], parts["application_logs"]) == (200, "waiting", "ok")
        assert f"waiting: {NO_APPLICATION}" in broker.output()
        assert max(publish(broker, 2 * BUDGET_MIB)) < 0x80, "nobody is owed what dispatch has not read"
        assert not Places(broker.data_dir).driver_log.exists()

        async def connect() -> None:
            client = MqttClient("billing-1")
            await client.connect(broker.port, expiry_s=3600)
            client.close()

        run(connect())
        wait_until(lambda: ready(broker)[1]["pipeline"] != "waiting", SEEN_S, "it starts")
        assert read_status(broker.data_dir).state != "waiting"
        assert Places(broker.data_dir).driver_log.exists()
