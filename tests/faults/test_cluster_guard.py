"""Two brokers on one Kafka and one Redis, in one cluster: one serves at a time, whatever happens to it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.mqtt_client import ConnectionEnded, MqttClient, run
from tests.support.server_process import has_stopped
from tests.support.waiting import wait_until

from embermq.cli.main import main
from embermq.mqtt.wire.packets import Puback

WAIT_S = 90.0


def test_the_second_is_refused_and_serves_when_the_first_is_out_which_answers_nothing_more(
    etcd: EtcdServer, servers: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = servers | {"cluster.etcd": f"{etcd.url}/cars", "cluster.lease_ttl_s": 3}
    first, second = (
        BrokerProcess(tmp_path / name, settings=settings | {"cluster.node": name}) for name in ("one", "two")
    )
    with first:
        assert main(["cluster", "status", "--data-dir", str(first.data_dir)]) == 0
        assert f"cluster cars, {etcd.url}/cars" in (told := capsys.readouterr().out)
        assert "\none " in told
        with urlopen(f"http://127.0.0.1:{first.http_port}/api/v1/cluster", timeout=WAIT_S) as answer:
            assert [each["about"]["node"] for each in json.load(answer)["nodes"]] == ["one"]
        second.launch()
        assert second.wait(WAIT_S) == 1
        assert "is served by node 'one'" in second.output()

        async def traffic() -> None:
            client = MqttClient("p")
            await client.connect(first.port)
            await client.publish("a", b"1", qos=1)
            os.kill(first.pid, signal.SIGSTOP)
            wait_until(lambda: has_stopped(first.pid), WAIT_S, "it stands still")
            with second:
                client.send_bytes(b"\x32\x06\x00\x01a\x00\x07z")
                answer = client.expect(Puback, 7)
                os.kill(first.pid, signal.SIGCONT)
                with pytest.raises(ConnectionEnded):
                    await answer
                assert first.wait(WAIT_S) == 1
                assert "the lease of node 'one'" in first.output()
                other = MqttClient("q")
                await other.connect(second.port)
                await other.publish("a", b"2", qos=1)
                etcd.pause()
                assert second.wait(WAIT_S) == 1
                etcd.resume()
                second.start()
                assert second.stop() == 0
                assert not etcd.control("get", "/embermq/cars/", "--prefix")

        run(traffic())
    alone = BrokerProcess(tmp_path / "alone", settings=servers)
    alone.launch()
    assert alone.wait(WAIT_S) == 1
    assert "belongs to cluster 'cars'" in alone.output()
