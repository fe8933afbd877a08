"""`embermq backup` and `embermq restore`: a data directory as it stands, without stopping the broker."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec
from msgspec import Struct

from embermq.adapters.segments.writer import sync_path
from embermq.adapters.sqlite.snapshot import BROKER, Snapshot, forget_boot, mark_restored
from embermq.adapters.webhook.alerts import SECRET_NAME
from embermq.app.api_tokens import FILE_NAME as TOKENS
from embermq.app.audit_trail import FILES as TRAIL
from embermq.app.bans import FILE_NAME as BANS
from embermq.app.clock_file import FILE_NAME as CLOCK
from embermq.app.errors import OptionError, UserError
from embermq.app.places_noted import FILE_NAME as PLACES
from embermq.app.places_noted import noted_places
from embermq.app.stored_rules import FILE_NAME as RULES
from embermq.pipeline.places import Places
from embermq.tools.audit import KEY as AUDIT_KEY
from embermq.tools.audit import PUBLIC_KEY as AUDIT_PUBLIC_KEY

MANIFEST = "backup.json"
ATTEMPTS = 5
"""Snapshots taken anew when the log was trimmed just then; retention does that about once a second at most."""
CHUNK_BYTES = 1024 * 1024
WHOLE_FILES = (TOKENS, BANS, RULES, SECRET_NAME, CLOCK, PLACES, AUDIT_KEY, AUDIT_PUBLIC_KEY, *TRAIL)
"""Beside the databases; each is only ever replaced as a whole, or appended to by whole lines."""
LAKE_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.")

Progress = Callable[[str, int, int], None]
"""Told what is being done, the bytes that are done and those that there are in all."""


class SavedFile(Struct, frozen=True):
    """One file of a backup; `name` is relative to it, `sha256` in hexadecimal."""

    name: str
    size_bytes: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True):
    """What a backup holds; written last, so that a directory without it is no backup."""

    version: str
    created: str
    log_start_offset: int
    log_end_offset: int
    files: tuple[SavedFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files of the backup."""
        return sum(file.size_bytes for file in self.files)

    def __str__(self) -> str:
        """How much it is."""
        log = (
            f", the log up to offset {self.log_end_offset:,}"
            if BROKER in [one.name for one in self.files]
            else ""
        )
        return f"{len(self.files)} files, {self.size_bytes:,} bytes{log}"


def make_backup(data_dir: Path, target: Path, progress: Progress) -> Manifest:
    """Copy `data_dir` to `target`, which must not be there or be empty. The broker may run.

    Raises UserError for directories that cannot be, StoreError when a file cannot be read, OSError when one cannot be
    written; nothing is left behind then.
    """
    if not (data_dir / BROKER).is_file() and not noted_places(data_dir).is_on_servers:
        raise UserError(f"{data_dir} is not the data directory of a broker; name it with --data-dir")
    if target.resolve().is_relative_to(data_dir.resolve()):
        raise OptionError(f"{target} is inside the data directory {data_dir}")
    with _new_directory(target), _whole_snapshot(data_dir) as snapshot:
        files = _lake_files(Places(data_dir), snapshot)
        files += [name for name in WHOLE_FILES if (data_dir / name).is_file()]
        sizes = {name: snapshot.bytes_of(name) for name in snapshot.names}
        for name in files:
            with suppress(FileNotFoundError):  # the pipeline has removed what the lake needs no more
                sizes[name] = (data_dir / name).stat().st_size
        _need_room(target, sum(sizes.values()))
        told = _CopyCount("copying", sum(sizes.values()), progress)
        for name in snapshot.names:
            snapshot.copy(name, target / name, told.more)
        for name in files:
            try:
                with (data_dir / name).open("rb") as file:
                    _copy(file, target / name, told)
            except FileNotFoundError:
                sizes.pop(name, None)
        return _seal(target, sorted(sizes), snapshot, progress)


def restore_backup(source: Path, data_dir: Path, progress: Progress) -> Manifest:
    """Make `data_dir`, which must not be there or be empty, from a backup.

    Raises UserError for what is no backup, or is damaged, StoreError; nothing is left behind then.
    """
    manifest = _read_manifest(source)
    with _new_directory(data_dir):
        _need_room(data_dir, manifest.size_bytes)
        told = _CopyCount("restoring", manifest.size_bytes, progress)
        for file in manifest.files:
            with (source / file.name).open("rb") as reading:
                digest = _copy(reading, data_dir / file.name, told)
            if digest != file.sha256:
                raise UserError(f"{source / file.name} is damaged: it is not what the backup was made with")
        if (data_dir / BROKER).is_file():
            mark_restored(data_dir / BROKER)
        for noted in (Places(data_dir).lake_ledger, Places(data_dir).rules):
            if noted.is_file():
                forget_boot(noted)
        _sync_tree(data_dir)
    return manifest


class _CopyCount:
    """Adds up what was copied."""

    def __init__(self, doing: str, total: int, progress: Progress) -> None:
        self._doing = doing
        self._total = total
        self._progress = progress
        self._done = 0

    def more(self, size: int) -> None:
        self._done += size
        self._progress(self._doing, self._done, self._total)


@contextmanager
def _new_directory(path: Path) -> Iterator[None]:
    """A directory readable by its owner alone, empty again or gone when what is done in it fails."""
    there = path.exists()
    if there and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} is there already and is not an empty directory")
    umask = os.umask(0o077)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield
    except BaseException:
        for entry in path.iterdir() if path.is_dir() else ():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if not there:
            path.rmdir()
        raise
    finally:
        os.umask(umask)


def _whole_snapshot(data_dir: Path) -> Snapshot:
    for _ in range(ATTEMPTS):
        snapshot = Snapshot(data_dir)
        if snapshot.is_whole():
            return snapshot
        snapshot.close()
    raise UserError(
        f"the log of {data_dir} was trimmed each of {ATTEMPTS} times that it was looked at; try again"
    )


def _lake_files(places: Places, snapshot: Snapshot) -> list[str]:
    """Names below the data directory of what the lake was made of when its position in the snapshot was noted.

    Files of the lake never change. Those of its log have the number of their commit, so the lake in the backup ends
    with the last one. Files of records are copied whether that state needs them or not: the pipeline that writes the
    restored lake removes what it does not need, and what it does need stays for a day after it was replaced.
    """
    ledger = places.lake_ledger.name
    if ledger not in snapshot.names:
        return []
    last = snapshot.lake_version(ledger)
    log = [
        file
        for file in (places.lake / LAKE_LOG).glob("*")
        if (commit := _COMMIT.match(file.name)) and int(commit[1]) <= last
    ]
    records = (file for file in places.lake.rglob("*.parquet") if not file.name.startswith("."))
    found = {*log, *(file for file in records if LAKE_LOG not in file.parts)}
    return [str(file.relative_to(places.data_dir)) for file in sorted(found)]


def _need_room(target: Path, size_bytes: int) -> None:
    free = shutil.disk_usage(target).free
    if free < size_bytes:
        raise UserError(f"{target}: {size_bytes:,} bytes are needed, {free:,} are free")


def _copy(reading: BinaryIO, target: Path, told: _CopyCount) -> str:
    """Copy one file; returns its SHA-256."""
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as writing:
        while chunk := reading.read(CHUNK_BYTES):
            digest.update(chunk)
            writing.write(chunk)
            told.more(len(chunk))
    return digest.hexdigest()


def _seal(directory: Path, names: list[str], snapshot: Snapshot, progress: Progress) -> Manifest:
    """Make everything durable, then say what it is."""
    told = _CopyCount("checking", sum((directory / name).stat().st_size for name in names), progress)
    files = tuple(SavedFile(name, *_measure(directory / name, told)) for name in names)
    manifest = Manifest(
        version=version("embermq"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        log_start_offset=snapshot.log_start,
        log_end_offset=snapshot.log_end,
        files=files,
    )
    _sync_tree(directory)
    half = directory / f"{MANIFEST}.half"
    half.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    sync_path(half)
    half.rename(directory / MANIFEST)
    sync_path(directory)
    return manifest


def _measure(path: Path, told: _CopyCount) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as reading:
        while chunk := reading.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            told.more(len(chunk))
    return size, digest.hexdigest()


def _read_manifest(source: Path) -> Manifest:
    path = source / MANIFEST
    if not path.is_file():
        raise UserError(f"{source} is not a finished backup: it has no {MANIFEST}")
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except msgspec.DecodeError as error:
        raise UserError(f"{path} cannot be understood: {error}") from error
    for file in manifest.files:
        place = source / file.name
        if not _is_below(file.name) or not place.resolve().is_relative_to(source.resolve()):
            raise UserError(f"{path}: {file.name!r} is not inside the backup")
        if not place.is_file():
            raise UserError(f"{source} is damaged: {file.name} is missing")
    return manifest


def _is_below(name: str) -> bool:
    """Whether a name leads to a file below any directory that it is put behind, whatever that one is called."""
    path = PurePosixPath(name)
    return "\0" not in name and not path.is_absolute() and path.parts != () and ".." not in path.parts


def _sync_tree(directory: Path) -> None:
    for path in _tree(directory):
        sync_path(path)


def _tree(directory: Path) -> Iterator[Path]:
    yield from directory.rglob("*")
    yield directory
