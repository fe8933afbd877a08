"""Spark's own options, and what a master elsewhere can be given."""

from pathlib import Path

import pytest

from embermq.pipeline.errors import PipelineSettingsError
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.places import Places
from embermq.pipeline.session import session_options
from embermq.pipeline.settings import DriverSettings, check_settings, spark_options

KAFKA = KafkaLog(bootstrap="k:9092")
MASTER = "spark://h:7077"
STORE = "postgresql://u@h/db"
LAKE = "s3a://lakes/one"
AT_HOME = {
    "spark.driver.extraJavaOptions",
    "spark.scheduler.allocation.file",
    "spark.sql.warehouse.dir",
}
"""What the driver alone reads."""


def elsewhere(**changed: object) -> DriverSettings:
    given = {"lake_dir": LAKE, "message_store": STORE, "spark_secret_file": "/s", **changed}
    return DriverSettings(master=MASTER, kafka=KAFKA, **given)  # type: ignore[arg-type]


@pytest.mark.promise("pipeline-15")
def test_every_query_may_run_elsewhere_when_its_store_is() -> None:
    check_settings(elsewhere())


@pytest.mark.promise("pipeline-15")
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (elsewhere(lake_dir=""), "the query lake writes lake/, .*set pipeline.lake_dir to s3a://BUCKET/PATH"),
        (elsewhere(lake_dir="/mnt/lake"), "the query lake writes /mnt/lake, a file of this machine"),
        (elsewhere(message_store=""), "the query archive writes messages.db, .*set stores.static to an SQL"),
        (elsewhere(spark_secret_file=""), "needs pipeline.spark_secret_file"),
    ],
)
def test_files_of_this_machine_are_refused_by_name(settings: DriverSettings, named: str) -> None:
    with pytest.raises(PipelineSettingsError, match=named):
        check_settings(settings)


@pytest.mark.promise("pipeline-15")
def test_executors_get_no_path_of_the_driver(tmp_path: Path) -> None:
    places = Places(tmp_path / "data")
    options = session_options(elsewhere(queries=("dispatch",), jars_dir=""), places, tmp_path / "sockets")
    named = {name for name, value in options.items() if str(tmp_path) in value}
    assert named <= AT_HOME


def test_options_of_sparks_own() -> None:
    given = ("spark.ui.enabled=true", "spark.executor.extraJavaOptions=-Da=b", " spark.executor.memory = 2g ")
    assert spark_options(DriverSettings(spark_options=given)) == {
        "spark.ui.enabled": "true",
        "spark.executor.extraJavaOptions": "-Da=b",
        "spark.executor.memory": "2g",
    }


@pytest.mark.promise("pipeline-16")
@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("spark.ui.enabled", "'spark.ui.enabled' is not spark.NAME=VALUE"),
        ("ui.enabled=true", "is not spark.NAME=VALUE"),
        ("spark.master=yarn", "spark.master cannot be set here, it is pipeline.master"),
        ("spark.jars.packages=a:b:1", "spark.jars.packages cannot be set here"),
        ("spark.speculation=true", "would write records of an application log twice"),
        ("spark.hadoop.fs.s3a.secret.key=hidden", "fs.s3a.secret.key is a secret"),
        ("spark.hadoop.fs.s3a.access.key=hidden", "is a secret"),
        ("spark.ssl.keyPassword=hidden", "is a secret"),
        (
            "spark.executor.extraJavaOptions=-Da=b -Djavax.net.ssl.keyStorePassword=hidden",
            "keyStorePassword=.*, a secret",
        ),
        ("spark.eventLog.dir=https://me:hidden@logs/x", "has https://...@... in its value, a secret"),
    ],
)
def test_options_that_are_refused(option: str, named: str) -> None:
    with pytest.raises(PipelineSettingsError, match=named) as refused:
        check_settings(DriverSettings(spark_options=(option,)))
    assert "hidden" not in str(refused.value)
