"""One driver at a time on a data directory."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest

from embermq.app.config import load_configuration
from embermq.app.errors import UserError
from embermq.app.pipeline_run import run_pipeline
from embermq.pipeline.errors import DriverLockError
from embermq.pipeline.places import Places, lock_driver, make_socket_directory


@pytest.mark.promise("pipeline-2")
def test_a_second_one_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    places = Places(tmp_path)
    held = lock_driver(places)
    with pytest.raises(DriverLockError, match=rf"already \(process {os.getpid()}\)"):
        lock_driver(places)
    places.broker.touch()
    settings = load_configuration(options={"data_dir": ("--data-dir", str(tmp_path))}).settings
    with pytest.raises(DriverLockError, match=rf"already \(process {os.getpid()}\)"):
        run_pipeline(settings)
    os.close(held)
    os.close(lock_driver(places))


def test_a_folder_that_no_broker_has_used_is_named(tmp_path: Path) -> None:
    settings = load_configuration(options={"data_dir": ("--data-dir", str(tmp_path))}).settings
    with pytest.raises(UserError, match=f"{tmp_path} is not the data directory of a broker"):
        run_pipeline(settings)


def test_one_that_is_about_to_end_is_waited_for(tmp_path: Path) -> None:
    places = Places(tmp_path)
    ends = Timer(0.2, os.close, [lock_driver(places)])
    ends.start()
    os.close(lock_driver(places, 30.0))
    ends.join()


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    places = Places(tmp_path / "data")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return places


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as one:
        yield one


def test_scratch_and_sockets_of_the_one_before_go(places: Places, bound: socket.socket) -> None:
    before = make_socket_directory(places)
    bound.bind(str(before / "s"))
    (places.scratch / "spark-1").mkdir(parents=True)
    (places.scratch / "spark-1" / "block").write_bytes(b"x")
    now = make_socket_directory(places)
    assert (before.exists(), places.scratch.exists(), now.is_dir()) == (False, False, True)
    assert list(now.parent.iterdir()) == [now]


@pytest.mark.parametrize("kind", ["other name", "other things", "a link", "nothing"])
def test_what_is_no_directory_of_sockets_stays(places: Places, tmp_path: Path, kind: str) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "data").write_bytes(b"x")
    directory = make_socket_directory(places)
    if kind == "other name":
        places.sockets.write_text(str(kept))
    elif kind == "other things":
        (directory / "data").write_bytes(b"x")
    elif kind == "a link":
        directory.rmdir()
        directory.symlink_to(kept)
    else:
        places.sockets.write_text("\0")
    make_socket_directory(places)
    assert (kept / "data").exists() and directory.exists()
