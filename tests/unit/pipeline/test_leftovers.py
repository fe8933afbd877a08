"""What a driver that was killed has left is removed by the next one, and nothing that is not a driver's."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from embermq.pipeline.leftovers import make_socket_directory
from embermq.pipeline.places import Places


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
