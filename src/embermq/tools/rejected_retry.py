"""`embermq pipeline rejected retry`: what dispatch has rejected comes in once more, where it can be read by now.

It goes to the applications that it was for, or to one client, topic or queue. For each of these there is a folder that
remembers what was put back, so that the same record is put back once, however often and for whatever reason one asks.
"""

from __future__ import annotations

import os
from collections.abc import Set
from contextlib import closing
from hashlib import blake2b
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from embermq.adapters.segments.writer import sync_path
from embermq.app.config import Settings
from embermq.app.control import ControlClient
from embermq.app.errors import JobFailed, UserError
from embermq.app.pipeline_side import kafka_positions
from embermq.app.settings import SQLITE
from embermq.model.position import position_of
from embermq.pipeline.errors import PipelineError
from embermq.pipeline.jobs.putting_back import Notice, Progress
from embermq.pipeline.jobs.replay_feed import ChosenMessages, RefusedMessage, ReplayFeed
from embermq.pipeline.places import Places
from embermq.pipeline.rejected_choice import (
    RejectedChoice,
    RejectedInFiles,
    RejectedInKafka,
    RejectedRecords,
    choose_rejected,
    owed_clients,
)
from embermq.tools.replay import (
    CHOSEN,
    PATIENCE_S,
    REFUSED,
    ControlDoor,
    RefusedFile,
    ReplayTarget,
    check_target,
    forget_job,
    held_folder,
    read_job,
    save_job,
    target_topic,
)
from embermq.tools.report_folder import data_of

FOLDER = "retries"
REFUSED_SHOWN = 100
_DONE = "done"
"""Positions that were put back, a line each."""


class RetryOrder(Struct, frozen=True, kw_only=True):
    """What an operator asks for: records with `reason` in theirs. Without a `target` to all applications that they were
    for. `anew`: also what was put back before."""

    reason: str
    target: ReplayTarget | None
    rate: float
    dry_run: bool = False
    anew: bool = False


class RetriedTo(Struct, frozen=True, kw_only=True):
    """What came of it for one receiver. `problem` says why nothing can go there, "" when it can."""

    to: str
    found: RejectedChoice
    put_back: int = 0
    refused_count: int = 0
    refused: tuple[RefusedMessage, ...] = ()
    interrupted: bool = False
    problem: str = ""


class RetryReport(Struct, frozen=True, kw_only=True):
    """What came of it. `found` says what there is with the reason, whoever it was for."""

    dry_run: bool
    interrupted: bool
    found: RejectedChoice
    receivers: tuple[RetriedTo, ...]

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left that one should look at."""
        left = self.found.unreadable or self.found.missing
        return not left and not any(one.problem or one.refused_count for one in self.receivers)


class _RetryJob(Struct, frozen=True, kw_only=True):
    """What goes out at present; it goes on, whatever reason is asked for meanwhile."""

    id: str
    reason: str
    found: RejectedChoice
    place: str


def run_retry(order: RetryOrder, settings: Settings, progress: Progress, notice: Notice) -> RetryReport:
    """Raises EmberError, PipelineError. Interrupted, failed or killed, the same order goes on."""
    data_dir = data_of(settings)
    if settings.stores.log == SQLITE:
        return _retry_all(order, data_dir, RejectedInFiles(Places(data_dir)), progress, notice)
    with closing(kafka_positions(settings)) as positions:
        return _retry_all(order, data_dir, RejectedInKafka(positions), progress, notice)


def _retry_all(
    order: RetryOrder, data_dir: Path, records: RejectedRecords, progress: Progress, notice: Notice
) -> RetryReport:
    clients = owed_clients(records, order.reason) if order.target is None else []
    targets = [order.target] if order.target is not None else [ReplayTarget(client=one) for one in clients]
    for target in targets:
        target_topic(target)
    all_of_them = choose_rejected(records, order.reason, "", frozenset(), None)
    receivers: list[RetriedTo] = []
    for target in targets:
        retry = _Retry(data_dir, records, order, target)
        try:
            receivers.append(retry.counted() if order.dry_run else retry.run(progress, notice))
        except UserError as error:
            if order.target is not None:
                raise
            receivers.append(replace(retry.counted(), problem=str(error)))
        if receivers[-1].interrupted:
            break
    return RetryReport(
        dry_run=order.dry_run,
        interrupted=any(one.interrupted for one in receivers),
        found=all_of_them,
        receivers=tuple(receivers),
    )


class _Retry:
    """To one receiver."""

    def __init__(
        self, data_dir: Path, records: RejectedRecords, order: RetryOrder, target: ReplayTarget
    ) -> None:
        self._data_dir = data_dir
        self._records = records
        self._order = order
        self._target = target
        self._to = target.name
        # Positions are those of one log: of another one they are other records.
        name = f"{records.log_id} {self._to}"
        self._folder = data_dir / FOLDER / blake2b(name.encode("utf-8", "replace"), digest_size=8).hexdigest()

    def counted(self) -> RetriedTo:
        """What there is to be put back; nothing is changed."""
        return RetriedTo(to=self._to, found=self._choose(None))

    def run(self, progress: Progress, notice: Notice) -> RetriedTo:
        """Raises UserError, JobFailed."""
        with ControlClient(self._data_dir) as broker:
            check_target(broker, self._target)
            with held_folder(self._folder, "this retry") as folder:
                return self._run(broker, folder, progress, notice)

    def _run(self, broker: ControlClient, folder: Path, progress: Progress, notice: Notice) -> RetriedTo:
        job = None if self._order.anew else read_job(folder, _RetryJob)
        if job is not None and job.reason != self._order.reason:
            raise UserError(
                f"{self._to}: a retry of records with the reason {job.reason!r} is not finished; first finish that one"
            )
        if job is None:
            job = self._begin(folder)
        chosen = ChosenMessages(folder / CHOSEN / job.place)
        if len(chosen) != job.found.chosen:
            raise JobFailed(f"{folder}: files of the chosen records are missing; --again begins anew")
        refused = RefusedFile(folder / REFUSED)
        feed = ReplayFeed(
            ControlDoor(broker, job.id, self._target.client),
            chosen,
            refused,
            target_topic(self._target),
            rate=self._order.rate,
            patience_s=PATIENCE_S,
            progress=progress,
            notice=notice,
        )
        is_interrupted = False
        try:
            if chosen:
                feed.run()
        except KeyboardInterrupt:
            is_interrupted = True
        except (PipelineError, UserError) as error:
            told = (
                f"{feed.done:,} of {feed.total:,} records are put back, the same command goes on from there"
            )
            raise JobFailed(f"{self._to}: {error}; {told}") from error
        left = sorted(refused.found)
        report = RetriedTo(
            to=self._to,
            found=job.found,
            put_back=feed.done - sum(number < feed.done for number in left),
            refused_count=len(left),
            refused=tuple(refused.found[number] for number in left[:REFUSED_SHOWN]),
            interrupted=is_interrupted,
        )
        if not is_interrupted:
            self._remember(folder, chosen, refused)
            forget_job(folder)
        return report

    def _begin(self, folder: Path) -> _RetryJob:
        forget_job(folder)
        place = os.urandom(8).hex()
        into = folder / CHOSEN / place
        found = self._choose(into)
        for path in (*into.rglob("*"), into, folder / CHOSEN):
            sync_path(path)
        job = _RetryJob(id=os.urandom(8).hex(), reason=self._order.reason, found=found, place=place)
        save_job(folder, job)
        return job

    def _choose(self, into: Path | None) -> RejectedChoice:
        done = frozenset() if self._order.anew else self._done()
        return choose_rejected(self._records, self._order.reason, self._target.client, done, into)

    def _done(self) -> Set[int]:
        try:
            lines = (self._folder / _DONE).read_bytes().split()
        except FileNotFoundError:
            return frozenset()
        return frozenset(map(int, lines))

    def _remember(self, folder: Path, chosen: ChosenMessages, refused: RefusedFile) -> None:
        """Durable when it returns. Killed before the job is forgotten, it is done once more, which changes nothing."""
        known = self._done() | {
            position_of(row["partition"], row["offset"])
            for number, row in enumerate(chosen.rows(0))
            if number not in refused
        }
        fresh = folder / f"{_DONE}.new"
        with fresh.open("w", encoding="ascii") as file:
            file.write("\n".join(map(str, sorted(known))))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(folder / _DONE)
        sync_path(folder)
