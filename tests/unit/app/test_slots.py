"""Settings of a cluster with several slots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from embermq.app import opened
from embermq.app.config import Settings
from embermq.app.errors import OptionError, UserError
from embermq.app.log_side import LogSide
from embermq.app.pipeline_run import run_pipeline
from embermq.app.pipeline_side import driver_settings
from embermq.app.places_noted import note_places
from embermq.app.settings import StoreSettings
from embermq.app.slots import (
    asked_slots,
    check_slots,
    cluster_of,
    named_slot,
    noted_slot,
    reader_name,
    slot_settings,
)
from embermq.cluster.settings import ClusterSettings
from embermq.durability.retention import RetentionLimits
from embermq.pipeline.rules.settings import RuleSettings
from embermq.pipeline.settings import PipelineSettings
from embermq.queues.settings import BrokerQueueSettings
from embermq.tools.submit import spark_submit

TWO = Settings(
    cluster=ClusterSettings(etcd="etcd://box/cars", slots=2, listen="127.0.0.1:7946"),
    stores=StoreSettings(log="kafka://box", session="redis://box/3"),
    pipeline=PipelineSettings(enabled=False),
    queues=BrokerQueueSettings(enabled=False),
)


def with_cluster(**given: object) -> Settings:
    return replace(TWO, cluster=replace(TWO.cluster, **given))


def with_rule(**given: object) -> Settings:
    rule = replace(RuleSettings(sql="SELECT topic, payload FROM messages"), **given)
    return replace(TWO, rules={"hot": rule})


def test_each_slot_has_stores_of_its_own() -> None:
    check_slots(TWO)
    assert slot_settings(TWO, 0) == TWO
    one = slot_settings(TWO, 1)
    assert (one.kafka.prefix, one.stores.session) == ("embermq.slot-1", "redis://box/3?slot=1")
    assert replace(one, kafka=TWO.kafka, stores=TWO.stores) == TWO
    assert cluster_of(TWO) == "cars with 2 slots"
    assert cluster_of(with_cluster(slots=1)) == "cars"
    assert cluster_of(Settings()) == ""


def test_what_another_slot_has_not_read_is_not_dropped_whatever_the_policy_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_with: list[RetentionLimits] = []
    monkeypatch.setattr(opened, "Retention", lambda *given: opened_with.append(given[-1]))
    log = SimpleNamespace(log=None, readers=None, applications=None, close=lambda: None)
    log_side = cast(LogSide, SimpleNamespace(open_for_retention=lambda: log))
    settings = replace(TWO, log=replace(TWO.log, pin_policy="drop-oldest"))
    _, close = opened.open_retention(tmp_path, settings, log_side)
    close()
    (limits,) = opened_with
    assert {limits.query_policies[reader_name(slot)] for slot in range(2)} == {"refuse"}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (with_cluster(slots=1, cert="node.pem"), r"^cluster.cert: has no effect with cluster.slots of 1"),
        (with_cluster(listen=""), r"^cluster.listen: needed with cluster.slots of 2"),
        (with_cluster(listen="127.0.0.1:0"), "is not HOST:PORT"),
        (with_cluster(listen="unix:/a"), "is not HOST:PORT"),
        (with_cluster(advertise="box"), "^cluster.advertise: "),
        (with_cluster(listen="0.0.0.0:7946"), "is not on loopback"),
        (with_cluster(cert="node.pem"), "^cluster.ca: needed with cluster.cert"),
        (with_cluster(ca="ca.pem"), "^cluster.cert: needed with cluster.ca"),
        (with_cluster(cert="node.pem", ca="ca.pem", plaintext=True), "^cluster.plaintext: has no effect"),
        (replace(TWO, stores=replace(TWO.stores, session="redis://box?slot=1")), "leave out the option slot"),
        (
            replace(TWO, pipeline=PipelineSettings(enabled=True)),
            r"^pipeline.lake_dir: with cluster.slots of 2, .* in object storage .* for lake and traffic: ",
        ),
        (
            replace(TWO, pipeline=PipelineSettings(enabled=True, queries=("dispatch", "traffic"))),
            r"^pipeline.lake_dir: with cluster.slots of 2, .* in object storage .* for traffic: ",
        ),
        (
            replace(TWO, pipeline=PipelineSettings(enabled=True, queries=("dispatch", "archive"))),
            r"^pipeline.queries: with cluster.slots of 2, archive needs stores.static on an SQL server",
        ),
        (
            with_rule(every="1m"),
            r"^rules.hot.every: with cluster.slots of 2, rules over windows of time do not",
        ),
        (
            with_rule(to="lake"),
            r'^rules.hot.to = "lake": with cluster.slots of 2, it needs pipeline.lake_dir in object storage',
        ),
    ],
)
def test_what_several_slots_cannot_do_yet_is_refused_by_name(settings: Settings, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_slots(settings)


def test_each_node_runs_all_queries_and_rules_over_the_log_of_its_slot() -> None:
    pipeline = PipelineSettings(
        enabled=True, queries=("dispatch", "archive", "lake", "traffic"), lake_dir="s3a://plant/lake"
    )
    stores = replace(TWO.stores, static="postgresql://box/embermq")
    check_slots(settings := replace(with_rule(to="lake"), pipeline=pipeline, stores=stores))
    driver = driver_settings(slot_settings(settings, 1))
    assert driver.kafka is not None and driver.kafka.has_copies and driver.kafka.slot == 1
    assert set(driver.rules) == {"hot"}
    assert driver.kafka.log_topic == "embermq.slot-1.msg.all"
    assert driver.kafka.application_prefix == "embermq.slot-1.msg.app."
    assert driver.kafka.progress_topic == "embermq.slot-1.pipeline.progress"


def test_commands_mean_the_slot_that_the_node_of_a_data_directory_had_last(tmp_path: Path) -> None:
    settings = replace(TWO, data_dir=str(tmp_path))
    with pytest.raises(UserError, match="has not served yet"):
        noted_slot(settings)
    for slot in (1, 0):
        note_places(tmp_path, slot_settings(settings, slot), slot)
        assert noted_slot(settings) == slot_settings(settings, slot)
    alone = replace(settings, cluster=ClusterSettings())
    assert noted_slot(alone) == alone


def test_a_job_is_of_all_slots_unless_one_is_named() -> None:
    assert asked_slots(TWO, None) == (TWO, slot_settings(TWO, 1))
    assert asked_slots(TWO, 1) == (slot_settings(TWO, 1),)
    with pytest.raises(OptionError, match="--slot: 2 is none of them"):
        asked_slots(TWO, 2)
    alone = replace(TWO, cluster=ClusterSettings())
    assert asked_slots(alone, None) == asked_slots(alone, 0) == (alone,)


def test_a_command_is_told_of_which_slot_it_shows_messages() -> None:
    assert named_slot(TWO, 1) == slot_settings(TWO, 1)
    for slot, text in ((None, "the cluster has slots 0 to 1"), (2, "2 is none of them")):
        with pytest.raises(OptionError, match=f"^--slot: {text}"):
            named_slot(TWO, slot)
    alone = replace(TWO, cluster=ClusterSettings())
    assert named_slot(alone, None) == named_slot(alone, 0) == alone
    with pytest.raises(OptionError, match="1 is none of them"):
        named_slot(alone, 1)


@pytest.mark.parametrize(
    "run_apart", [run_pipeline, lambda settings: spark_submit(settings, Path("driver"), None, ())]
)
def test_the_pipeline_of_a_slot_does_not_run_apart_from_its_node(
    run_apart: Callable[[Settings], object],
) -> None:
    with pytest.raises(UserError, match=r"^cluster.slots is 2: each node runs the pipeline of its slot"):
        run_apart(TWO)


def test_off_loopback_what_nodes_say_has_to_be_allowed_in_the_clear() -> None:
    check_slots(with_cluster(listen="192.0.2.1:7946", plaintext=True, advertise="box:7946"))
    check_slots(with_cluster(listen="192.0.2.1:7946", cert="node.pem", ca="ca.pem"))
