"""The embedded pipeline's part for application logs, played by a thread: black-box tests need no Spark for what comes
behind it."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from importlib.resources import files
from itertools import islice
from pathlib import Path
from threading import Event, Thread

from embermq.formats.log_record import decode_record, iter_frames
from embermq.formats.stored_version import PIPELINE_FILES
from embermq.pipeline.places import Places
from embermq.pipeline.sources.log_file import LogFile, LogFrame

STEP_S = 0.005
BATCHES = 256
END_S = 30.0
MANY = 2**62


class PlayedPipeline:
    """Carries what the broker's log holds to applications.db, while it is entered; the broker may be killed."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._ended = Event()
        self._thread = Thread(target=self._run, name="played pipeline")
        self._failure: BaseException | None = None

    def __enter__(self) -> PlayedPipeline:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(END_S)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not (self._data_dir / "broker.db").exists():
                if self._ended.wait(STEP_S):
                    return
            with closing(self._open_applications()) as applications:
                self._play(applications)
        except BaseException as error:  # told at the end
            self._failure = error

    def _open_applications(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._data_dir / "applications.db", isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA user_version = {PIPELINE_FILES}")
        for name in ("applications.sql", "progress.sql"):
            connection.executescript(files("embermq.formats").joinpath(name).read_text())
        return connection

    def _play(self, applications: sqlite3.Connection) -> None:
        found = applications.execute("SELECT next_offset FROM progress WHERE reader = 'dispatch'").fetchone()
        done = found[0] if found else 0
        with closing(LogFile(Places(self._data_dir).log)) as log:
            while not self._ended.wait(STEP_S):
                batches = list(islice(log.batches(done, MANY), BATCHES))
                if batches:
                    self._carry(applications, batches)
                    done = batches[-1].base + batches[-1].count

    def _carry(self, applications: sqlite3.Connection, batches: list[LogFrame]) -> None:
        entries = []
        for batch in batches:
            for number, frame in enumerate(iter_frames(batch.body)):
                for stamp in decode_record(frame).stamps:
                    ids = stamp.subscription_identifiers
                    flags = stamp.qos | stamp.retain_as_published << 2
                    entries.append(
                        (stamp.generation, batch.base + number, flags, struct.pack(f">{len(ids)}I", *ids))
                    )
        end = batches[-1].base + batches[-1].count
        applications.execute("BEGIN IMMEDIATE")
        applications.executemany("INSERT OR IGNORE INTO application_log VALUES (?, ?, ?, ?)", entries)
        applications.execute("INSERT OR REPLACE INTO progress VALUES ('dispatch', ?, 0)", (end,))
        applications.execute("COMMIT")
