"""Fetching the connector's jars: what is missing or damaged is replaced, and nothing is ever left half-done."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.support.broker_process import EMBERMQ
from tests.support.forked_program import run_program

from embermq.pipeline.errors import PipelineSettingsError
from embermq.pipeline.jars import Jar, connector_jars, fetch_jars, lake_jars, read_jar_list
from embermq.pipeline.java import JavaRuntime, find_java
from embermq.pipeline.settings import PipelineSettings

TIMEOUT_S = 100
ROOT = Path(__file__).resolve().parents[2]
LISTS = ROOT / "src" / "embermq" / "pipeline"
CONNECTOR, TOKENS, CLIENTS, POOL = read_jar_list(LISTS / "connector_jars.txt")
DELTA, STORAGE = read_jar_list(LISTS / "delta_jars.txt")
JARS = (CONNECTOR, TOKENS, CLIENTS, POOL, DELTA, STORAGE)
OF_S3 = read_jar_list(LISTS / "s3_jars.txt")
IN_S3 = "pipeline.lake_dir=s3a://bucket/lake"
NOWHERE = "http://127.0.0.1:9"
"""Nobody listens there."""


class Repository:
    """A Maven repository on loopback, with the jars that the set-up of the tests has fetched."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url

    def path(self, jar: Jar) -> Path:
        return self.folder / jar.group.replace(".", "/") / jar.artifact / jar.version / jar.file_name


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    folder = tmp_path / "repository"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    found = Repository(folder, f"http://127.0.0.1:{server.server_port}")
    in_s3 = PipelineSettings(lake_dir="s3a://bucket/lake")
    for jar, path in zip((*JARS, *OF_S3), [*connector_jars(in_s3), *lake_jars(in_s3)], strict=True):
        found.path(jar).parent.mkdir(parents=True)
        found.path(jar).symlink_to(path)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "jars"


def fetch(folder: Path, *words: str, **environment: str) -> tuple[int, str]:
    """Exit code and all that is shown."""
    typed: list[str | Path] = ["pipeline", "fetch-jars", "--into", folder, *words]
    done = run_program(*typed, environment=environment, timeout_s=TIMEOUT_S)
    return done.returncode, done.stdout + done.stderr


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


ALL = sorted(jar.file_name for jar in JARS)


def test_all_is_fetched_once_and_checked(folder: Path, repository: Repository) -> None:
    code, told = fetch(folder, "--from", repository.url, "--json")
    assert (code, json.loads(told)["fetched"]) == (0, [jar.file_name for jar in JARS])
    assert names(folder) == ALL
    settings = PipelineSettings(jars_dir=str(folder))
    found = [*connector_jars(settings), *lake_jars(settings)]
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in found] == [jar.sha256 for jar in JARS]
    assert fetch(folder, "--from", NOWHERE) == (0, f"{folder} has all that Spark needs\n")


def test_what_s3_needs_is_fetched_for_a_lake_there_alone(folder: Path, repository: Repository) -> None:
    folder.mkdir()
    for jar in JARS:
        shutil.copy(repository.path(jar), folder)
    in_s3 = PipelineSettings(jars_dir=str(folder), lake_dir="s3a://bucket/lake")
    with pytest.raises(PipelineSettingsError, match="to write the lake"):
        lake_jars(in_s3)
    code, told = fetch(folder, "--from", repository.url, "--json", "--set", IN_S3)
    assert (code, json.loads(told)["fetched"]) == (0, [jar.file_name for jar in OF_S3])
    assert len(lake_jars(in_s3)) == 2 + len(OF_S3)


def test_only_what_is_missing_or_damaged_is_fetched(folder: Path, repository: Repository) -> None:
    folder.mkdir()
    for jar in JARS:
        shutil.copy(repository.path(jar), folder)
    (folder / POOL.file_name).unlink()
    with (folder / TOKENS.file_name).open("r+b") as file:
        file.truncate(60_000)
    (folder / ".fetching" / "fetched").mkdir(parents=True)
    (folder / ".fetching" / "fetched" / POOL.file_name).write_bytes(b"of one that was killed")
    repository.path(CLIENTS).unlink()
    code, told = fetch(folder, "--from", repository.url)
    assert (code, told) == (0, f"fetched into {folder}: {TOKENS.file_name}, {POOL.file_name}\n")
    assert names(folder) == ALL
    assert connector_jars(PipelineSettings(jars_dir=str(folder)))


def test_what_has_a_wrong_hash_is_not_taken(folder: Path, repository: Repository) -> None:
    folder.mkdir()
    (folder / POOL.file_name).write_bytes(b"an old one")
    repository.path(POOL).unlink()
    repository.path(POOL).write_bytes(b"another one")
    code, told = fetch(folder, "--from", repository.url)
    assert code == 1
    assert f"gave for {POOL.group}:{POOL.artifact}:{POOL.version} is not what was asked for" in told
    assert f"instead of {POOL.sha256}" in told
    assert names(folder) == [POOL.file_name]
    assert (folder / POOL.file_name).read_bytes() == b"an old one"


def test_what_is_not_to_be_had_is_named(folder: Path, repository: Repository) -> None:
    repository.path(CLIENTS).unlink()
    code, told = fetch(folder, "--from", repository.url)
    assert code == 1
    assert told.startswith(
        f"embermq: the Maven repository did not give {CLIENTS.file_name}. Is it within reach?"
    )
    assert names(folder) == []
    code, told = fetch(folder, "--from", NOWHERE)
    assert code == 1
    assert f"{CONNECTOR.file_name}, {TOKENS.file_name}" in told and "Connection refused" in told
    assert names(folder) == []


@pytest.mark.parametrize("url", ["ftp://host", "https://me:secret@host/maven", 'http://host/"/>', "central"])
def test_a_mirror_must_be_a_plain_address(folder: Path, url: str) -> None:
    code, told = fetch(folder, "--from", url)
    assert code == 2
    assert "named by a URL of http or https, without a user" in told and "secret" not in told
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for into, why in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "x", "Not a directory")):
        assert fetch(into, "--from", NOWHERE) == (1, f"embermq: jars cannot be put into {into}: {why}\n")


def test_two_that_fetch_at_the_same_time_do_it_once(folder: Path, repository: Repository) -> None:
    command = [
        str(EMBERMQ),
        "pipeline",
        "fetch-jars",
        "--into",
        str(folder),
        "--from",
        repository.url,
        "--json",
    ]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    told = [json.loads(one.communicate(timeout=TIMEOUT_S)[0])["fetched"] for one in both]
    assert sorted(map(len, told)) == [0, len(JARS)]
    assert names(folder) == ALL


def test_the_installed_java_fetches_from_maven_central(folder: Path, tmp_path: Path) -> None:
    """It trusts the authorities that Python trusts, which matters where a proxy has one of its own."""

    def installed_java(work: Path) -> JavaRuntime:
        found = find_java(work, environment={"PATH": str(tmp_path)})
        assert found.is_installed_with_us
        return found

    assert fetch_jars([POOL], folder, installed_java) == [POOL]
    assert names(folder) == [POOL.file_name]


def test_the_pipeline_names_the_command_for_what_is_missing_or_wrong(
    folder: Path, repository: Repository
) -> None:
    settings = PipelineSettings(jars_dir=str(folder))
    with pytest.raises(PipelineSettingsError) as error:
        connector_jars(settings)
    assert str(error.value) == (
        f"pipeline.jars_dir = '{folder}': {CONNECTOR.file_name} is missing; Spark needs it to read Kafka. "
        f"Fetch it with: embermq pipeline fetch-jars --into {folder}"
    )
    folder.mkdir()
    for jar in JARS:
        shutil.copy(repository.path(jar), folder)
    (folder / CLIENTS.file_name).write_bytes(b"")
    with pytest.raises(PipelineSettingsError, match=f"{CLIENTS.file_name} has the SHA-256 e3b0c442"):
        connector_jars(settings)


@pytest.mark.parametrize(
    "line",
    [
        "org.example:jar:1.0",
        "org.example:jar 0" + "0" * 63,
        "org.example:jar:1.0 " + "0" * 63,
        "org.example:jar:../1 " + "0" * 64,
        'org.example:j"ar:1.0 ' + "0" * 64,
    ],
)
def test_a_list_of_jars_is_read_strictly(tmp_path: Path, line: str) -> None:
    path = tmp_path / "jars.txt"
    path.write_text(f"# for people\n\n{line}\n")
    with pytest.raises(ValueError, match=r"jars\.txt, line 3"):
        read_jar_list(path)
