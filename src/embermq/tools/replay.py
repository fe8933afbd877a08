"""`embermq pipeline replay`: what is asked for, in the words of the job, and the folder in which a replay is kept.

A replay is known by what it was asked for. Asked for again it goes on where it was killed, and once it is over it is
not done again, unless it is wanted once more.

What is kept of a replay until it is done, and how the broker that runs is asked. A folder has the job, what was
chosen, and what the broker refused; one process at a time works in it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from embermq.adapters.segments.writer import sync_path
from embermq.admin.operations import GET_CLIENT, GET_QUEUE_STATS, REPLAY_MESSAGES
from embermq.app.config import Settings
from embermq.app.control import ControlClient, NoAnswer
from embermq.app.errors import JobFailed, OptionError, UserError
from embermq.app.pipeline_side import driver_settings
from embermq.app.places_noted import noted_places
from embermq.app.slots import asked_slots
from embermq.cluster.slots import slot_of
from embermq.model.moments import iso_ms
from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import SHARE_PREFIX, is_system_topic, validate_filter, validate_topic
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.pipeline.errors import BrokerAway, PipelineError
from embermq.pipeline.jobs.past_range import PastRange
from embermq.pipeline.jobs.putting_back import Notice, Progress
from embermq.pipeline.jobs.replay_feed import PLACE, ChosenMessages, RefusedMessage, ReplayFeed, Taken
from embermq.pipeline.jobs.replay_values import Chosen, ReplayRange
from embermq.pipeline.places import Places
from embermq.queues.errors import NameRefused
from embermq.queues.names import QUEUE_PREFIX, parse_topic, queue_name
from embermq.tools.report_folder import data_of, log_end, past_range, replay_range


class ReplayTarget(Struct, frozen=True, kw_only=True):
    """As it was typed: one of them is given."""

    client: str = ""
    topic: str = ""
    queue: str = ""

    @property
    def name(self) -> str:
        """The target as `client NAME`, `topic NAME` or `queue NAME`."""
        if self.client:
            return f"client {self.client}"
        return f"topic {self.topic}" if self.topic else f"queue {self.queue}"


def target_topic(words: ReplayTarget) -> str:
    """The topic of each message, with PLACE for its own. Raises OptionError."""
    given = [name for name in ("client", "topic", "queue") if getattr(words, name)]
    if len(given) != 1:
        raise OptionError("one of --client, --topic and --queue says where the messages go")
    if words.client:
        return PLACE
    option, target = (
        ("--topic", words.topic) if words.topic else ("--queue", QUEUE_PREFIX + queue_name(words.queue))
    )
    try:
        validate_topic(target.replace(PLACE, "t"))
        if words.queue and parse_topic(target).verb is not None:
            raise NameRefused("it names no queue", ReasonCode.TOPIC_NAME_INVALID)
    except (TopicError, NameRefused) as error:
        raise OptionError(f"{option}: {error}") from None
    if words.topic and (is_system_topic(target) or target.startswith((SHARE_PREFIX, QUEUE_PREFIX))):
        raise OptionError(f"--topic: {target!r} is no topic to replay to; --queue names a queue")
    return target


def check_target(broker: ControlClient, words: ReplayTarget) -> None:
    """Raises UserError when there is none: the broker would take it as a name like any other."""
    if words.queue:
        broker.ask(GET_QUEUE_STATS, name=queue_name(words.queue))
    if words.client:
        found = broker.ask(GET_CLIENT, client_id=words.client)["session"]
        if found["type"] != "application" or not found["kept"]:
            raise UserError(
                f"the client {words.client!r} has no application log, it is a {found['type'].upper()} client;"
                " --topic reaches whoever has subscribed"
            )


PATIENCE_S = 60.0
"""How long a broker is waited for that goes away meanwhile: a start with a million messages takes a few seconds."""
JOB, REFUSED, CHOSEN = "replay.json", "refused.jsonl", "chosen"
_LOCK = "lock"
_Kept = TypeVar("_Kept", bound=Struct)


class RefusedFile:
    """The messages that the broker did not take, by number, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[int, RefusedMessage] = {}
        with suppress(FileNotFoundError):
            for line in path.read_bytes().splitlines():
                with suppress(
                    msgspec.DecodeError
                ):  # the end of a line that was being written: it is refused again
                    one = msgspec.json.decode(line, type=RefusedMessage)
                    self.found[one.number] = one

    def __contains__(self, number: object) -> bool:
        return number in self.found

    def add(self, refused: RefusedMessage) -> None:
        """Note a refused message; durable when it returns."""
        with self._path.open("ab") as file:
            file.write(b"\n" + msgspec.json.encode(refused))
            file.flush()
            os.fsync(file.fileno())
        self.found[refused.number] = refused


class ControlDoor:
    """The API on the control socket."""

    def __init__(self, broker: ControlClient, replay: str, client: str) -> None:
        self._broker = broker
        self._replay = replay
        self._client = client

    def take(self, first: int, messages: Sequence[bytes | None]) -> Taken:
        """Raises BrokerAway, and UserError when the broker refuses."""
        try:
            answer = self._broker.ask(
                REPLAY_MESSAGES, replay=self._replay, first=first, messages=messages, client=self._client
            )
        except NoAnswer as error:
            raise BrokerAway(str(error)) from error
        return msgspec.convert(answer, Taken)


@contextmanager
def held_folder(folder: Path, doing: str) -> Iterator[Path]:
    """It is there, and nobody else works in it meanwhile. Raises UserError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(f"another process is at {doing}; wait for it, or end it") from None
    try:
        yield folder
    finally:
        os.close(descriptor)


def read_job(folder: Path, kind: type[_Kept]) -> _Kept | None:
    """The one that was saved; None when there is none."""
    with suppress(FileNotFoundError):
        return msgspec.json.decode((folder / JOB).read_bytes(), type=kind)
    return None


def save_job(folder: Path, job: Struct) -> None:
    """Write what was asked for in place of what stands there; durable when it returns."""
    fresh = folder / f"{JOB}.new"
    with fresh.open("wb") as file:
        file.write(msgspec.json.encode(job))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(folder / JOB)
    sync_path(folder)


def forget_job(folder: Path) -> None:
    """With all that was chosen and refused."""
    for name in (JOB, REFUSED, CHOSEN):
        remove(folder / name)


def remove(path: Path) -> None:
    """A file, or a folder with all that is in it."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


FOLDER = "replays"
REFUSED_SHOWN = 100


class ReplayWords(Struct, frozen=True, kw_only=True):
    """What an operator asks for, as it was typed: one of `client`, `topic` and `queue`."""

    start: str
    end: str = ""
    topic_filter: str = "#"
    client: str = ""
    topic: str = ""
    queue: str = ""


class ReplayOrder(Struct, frozen=True, kw_only=True):
    """How it is to be done. `anew`: whatever came of it before. `tasks` of Spark at a time, 0 for one a core."""

    words: ReplayWords
    rate: float
    dry_run: bool = False
    anew: bool = False
    tasks: int = 0
    slot: int | None = None
    """Of a cluster with several slots: whose messages; those of all slots, one after the other, without."""


class ReplayReport(Struct, frozen=True, kw_only=True):
    """What came of it. `replayed` over all runs; `refused` has the first of the `refused_count` that the broker did not
    take. `was_done`: by an earlier run, and nothing by this one."""

    dry_run: bool
    interrupted: bool
    was_done: bool
    log_ends: tuple[int, ...]
    """Of each log, by slot where there are several."""
    records: int
    chosen: int
    from_lake: int
    expired: int
    missing: int
    unreadable: int
    payload_bytes: int
    oldest: str | None
    newest: str | None
    replayed: int
    refused_count: int
    refused: tuple[RefusedMessage, ...]


class _Job(Struct, frozen=True, kw_only=True):
    """What is kept of a replay. `id` is new each time it is done, and names it to the broker."""

    id: str
    words: ReplayWords
    log_ends: tuple[int, ...]
    chosen: Chosen | None = None
    place: str = ""
    """Where they are, once all are."""
    done: bool = False
    into_slot: int | None = None
    """Of a cluster with several: which one's node takes them, and knows how far it is."""


def run_replay(order: ReplayOrder, settings: Settings, progress: Progress, notice: Notice) -> ReplayReport:
    """Raises EmberError, PipelineError. Interrupted, failed or killed, the same order goes on."""
    data_dir, words = data_of(settings, by_slot=True), order.words
    into_slot = _slot_of_target(settings, words)
    logs, place = asked_slots(settings, order.slot), _folder(data_dir, words, order.slot)
    goal = ReplayTarget(client=words.client, topic=words.topic, queue=words.queue)
    target, past = target_topic(goal), _past(words, len(logs))
    known = None if order.anew or order.dry_run else read_job(place, _Job)
    # One that goes on needs neither Spark nor the log: Kafka may be away.
    ends = known.log_ends if known is not None else tuple(log_end(one, Places(data_dir)) for one in logs)
    wanted = [replay_range(past, words.topic_filter, end) for end in ends]
    if order.dry_run:
        return _report(_Job(id="", words=words, log_ends=ends, chosen=_choose(order, logs, wanted, None)))
    with held_folder(place, "this replay") as folder, ControlClient(data_dir) as broker:
        job = None if order.anew else read_job(folder, _Job)
        if job is None:
            forget_job(folder)
            job = _Job(id=os.urandom(8).hex(), words=words, log_ends=ends, into_slot=into_slot)
        refused = RefusedFile(folder / REFUSED)
        if job.done:
            return _report(job, refused, was_done=True)
        if job.into_slot != into_slot:
            raise UserError(
                f"this replay goes into slot {job.into_slot} of the cluster, and the node of {data_dir} has slot "
                f"{into_slot} now: move {folder} to the data directory of the node that has that one, or wait"
            )
        check_target(broker, goal)
        if job.chosen is None:
            wanted = [replace(one, log_end=end) for one, end in zip(wanted, job.log_ends, strict=True)]
            job = _choose_into(folder, order, logs, wanted, job)
        chosen = ChosenMessages(folder / CHOSEN / job.place)
        if job.chosen is None or len(chosen) != job.chosen.chosen:
            raise JobFailed(f"{folder}: files of the chosen messages are missing; --again begins anew")
        feed = ReplayFeed(
            ControlDoor(broker, job.id, words.client),
            chosen,
            refused,
            target,
            rate=order.rate,
            patience_s=PATIENCE_S,
            progress=progress,
            notice=notice,
        )
        return _feed(folder, job, feed, refused)


def _choose_into(
    folder: Path, order: ReplayOrder, logs: Sequence[Settings], wanted: Sequence[ReplayRange], job: _Job
) -> _Job:
    from embermq.pipeline.jobs.replay import sync_tree

    save_job(folder, job)
    remove(folder / CHOSEN)
    # The Java of a killed run may live on for a moment, and write where it began to: never twice in one place.
    place = os.urandom(8).hex()
    into = folder / CHOSEN / place
    found = _choose(order, logs, wanted, into)
    sync_tree(folder / CHOSEN)
    # What was counted in a pass of its own may differ; this is what there is.
    job = replace(job, chosen=replace(found, chosen=len(ChosenMessages(into))), place=place)
    save_job(folder, job)
    return job


def _choose(
    order: ReplayOrder, logs: Sequence[Settings], wanted: Sequence[ReplayRange], into: Path | None
) -> Chosen:
    from embermq.pipeline.jobs.replay import choose

    places = Places(Path(logs[0].data_dir).absolute())
    try:
        if into is not None:
            into.mkdir(parents=True)
        return choose([*map(driver_settings, logs)], places, wanted, into=into, tasks=order.tasks)
    except PipelineError as error:
        raise JobFailed(f"{error}; nothing was replayed") from error


def _feed(folder: Path, job: _Job, feed: ReplayFeed, refused: RefusedFile) -> ReplayReport:
    try:
        feed.run()
    except KeyboardInterrupt:
        return _report(job, refused, done=feed.done, interrupted=True)
    except (PipelineError, UserError) as error:
        told = f"{feed.done:,} of {feed.total:,} messages are replayed, the same command goes on from there"
        raise JobFailed(f"{error}; {told}") from error
    job = replace(job, done=True)
    save_job(folder, job)
    remove(folder / CHOSEN)
    return _report(job, refused, done=feed.done)


def _report(
    job: _Job,
    refused: RefusedFile | None = None,
    *,
    done: int = 0,
    interrupted: bool = False,
    was_done: bool = False,
) -> ReplayReport:
    found, left = job.chosen, refused.found if refused is not None else {}
    assert found is not None, "it has been counted"
    done = found.chosen if job.done else done
    return ReplayReport(
        dry_run=refused is None,
        interrupted=interrupted,
        was_done=was_done,
        log_ends=job.log_ends,
        records=found.records,
        chosen=found.chosen,
        from_lake=found.from_lake,
        expired=found.expired,
        missing=found.missing,
        unreadable=found.unreadable,
        payload_bytes=found.payload_bytes,
        oldest=None if found.oldest_ms is None else iso_ms(found.oldest_ms),
        newest=None if found.newest_ms is None else iso_ms(found.newest_ms),
        replayed=done - sum(number < done for number in left),
        refused_count=len(left),
        refused=tuple(sorted(left.values(), key=_by_number)[:REFUSED_SHOWN]),
    )


def _by_number(refused: RefusedMessage) -> int:
    return refused.number


# What was asked for


def _slot_of_target(settings: Settings, words: ReplayWords) -> int | None:
    """Whose node takes what is replayed: that of the data directory. None without several slots. Raises UserError."""
    slots = settings.cluster.slots
    if slots == 1:
        return None
    here = noted_places(Path(settings.data_dir)).slot
    if words.client and slot_of(words.client, slots) != here:
        raise UserError(
            f"the client {words.client!r} is of slot {slot_of(words.client, slots)}, and its log is there: name the "
            "data directory of that slot's node with --data-dir"
        )
    return here


def _past(words: ReplayWords, logs: int) -> PastRange:
    """In so many logs. Raises OptionError."""
    try:
        validate_filter(words.topic_filter)
    except TopicError as error:
        raise OptionError(f"--filter: {error}") from None
    if words.topic_filter.startswith(SHARE_PREFIX):
        raise OptionError("--filter: a shared filter is for subscriptions; leave $share and the group out")
    return past_range(words.start, words.end, logs)


# The folder


def _folder(data_dir: Path, words: ReplayWords, slot: int | None) -> Path:
    told = msgspec.json.encode(words) + (b"" if slot is None else b"%d" % slot)
    return data_dir / FOLDER / blake2b(told, digest_size=8).hexdigest()
