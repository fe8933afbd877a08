"""`embermq pipeline redrive`: what is asked for, in the words of the job. The broker runs: it alone moves messages."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer
from embermq.adapters.sqlite.queue_tables import QueueTables
from embermq.admin.operations import GET_QUEUE_STATS, REDRIVE_DEAD_LETTERS
from embermq.app.config import Settings
from embermq.app.control import ControlClient, NoAnswer
from embermq.app.errors import JobFailed, OptionError, UserError
from embermq.app.places_noted import GIVE, noted_places
from embermq.app.settings import SQLITE
from embermq.app.slots import noted_slot
from embermq.app.store_addresses import redis_address
from embermq.model.queue_rows import QueueWrites
from embermq.pipeline.errors import BrokerAway, FilterError, PipelineError
from embermq.pipeline.places import Places
from embermq.ports.errors import StoreError
from embermq.queues.names import DEAD_LETTER_PREFIX, QueueKind, queue_name

if TYPE_CHECKING:
    from embermq.adapters.redis.blocking import BlockingRedis
    from embermq.pipeline.jobs.putting_back import Notice, PieceDone, Progress
    from embermq.pipeline.jobs.redrive import RedriveReport


@contextmanager
def letters_file(settings: Settings, queue: str, *, with_bodies: bool) -> Iterator[Path]:
    """A broker.db with the dead letters in `queue`, and their records on request. Raises UserError, StoreError."""
    data_dir = Path(settings.data_dir).absolute()
    own = data_dir / "broker.db"
    if own.is_file():
        yield own
        return
    if settings.stores.session == SQLITE:
        if noted_places(data_dir).is_on_servers:
            raise UserError(f"stores.session: the dead letters of {data_dir} are in a Redis; {GIVE}")
        raise UserError(f"{data_dir} is not the data directory of a broker; name it with --data-dir")
    with tempfile.TemporaryDirectory(prefix="embermq-") as folder:
        path = Path(folder) / "broker.db"
        _copy(settings, queue, path, with_bodies=with_bodies)
        yield path


@contextmanager
def all_letters_file(settings: Settings) -> Iterator[Path]:
    """The same with the dead letters of every queue, without their records. Raises StoreError."""
    if settings.stores.session == SQLITE:
        yield Path(settings.data_dir).absolute() / "broker.db"
        return
    from embermq.adapters.redis.blocking import BlockingRedis
    from embermq.adapters.redis.queue_messages import queue_names

    with tempfile.TemporaryDirectory(prefix="embermq-") as folder:
        path = Path(folder) / "broker.db"
        with (
            BlockingRedis(redis_address(settings.stores.session), settings.redis) as redis,
            closing(open_writer(path, synchronous="OFF")) as writer,
        ):
            apply_broker_schema(writer)
            for name in queue_names(redis):
                if name.startswith(DEAD_LETTER_PREFIX):
                    _copy_queue(redis, name, writer, with_bodies=False)
        yield path


def _copy(settings: Settings, queue: str, path: Path, *, with_bodies: bool) -> None:
    from embermq.adapters.redis.blocking import BlockingRedis

    with (
        BlockingRedis(redis_address(settings.stores.session), settings.redis) as redis,
        closing(open_writer(path, synchronous="OFF")) as writer,
    ):
        apply_broker_schema(writer)
        _copy_queue(redis, queue, writer, with_bodies=with_bodies)


def _copy_queue(redis: BlockingRedis, queue: str, writer: sqlite3.Connection, *, with_bodies: bool) -> None:
    from embermq.adapters.redis.queue_messages import RedisQueueMessages

    tables, messages = QueueTables(writer), RedisQueueMessages(redis, queue)
    found = messages.queue()
    if found is None:
        return
    tables.apply(QueueWrites(queues={found.generation: found}), 0)
    for page in messages.entries(found.generation):
        entries = {(row.queue, row.sequence): row for row in page}
        offsets = {row.sequence: row.offset for row in page}
        bodies = messages.bodies(list(offsets)) if with_bodies else ()
        writer.execute("BEGIN")
        tables.apply(QueueWrites(entries=entries), 0)
        for sequence, body in bodies:
            tables.apply(QueueWrites(bodies_at={offsets[sequence]: body}), 0)
        tables.write()
        writer.execute("COMMIT")


PATIENCE_S = 60.0
"""How long a broker is waited for that goes away meanwhile: a start with a million messages takes a few seconds."""


class RedriveOrder(Struct, frozen=True, kw_only=True):
    """What an operator asks for. `rate` dead letters a second; `tasks` of Spark at a time, 0 for one a core."""

    queue: str
    wanted: str | None = None
    rate: float | None = None
    dry_run: bool = False
    tasks: int = 0


class _Stats(Struct):
    """What is used of a queue's figures."""

    kind: str
    dead_letter_queue: str


class BrokerDoor:
    """The API on the control socket."""

    def __init__(self, broker: ControlClient, letters_in: str) -> None:
        self._broker = broker
        self._letters_in = letters_in

    def put_back(self, letter_ids: Sequence[str]) -> PieceDone:
        """Raises BrokerAway, and UserError when the broker refuses."""
        from embermq.pipeline.jobs.putting_back import PieceDone

        try:
            answer = self._broker.ask(REDRIVE_DEAD_LETTERS, name=self._letters_in, ids=letter_ids)
        except NoAnswer as error:
            raise BrokerAway(str(error)) from error
        return msgspec.convert(answer, PieceDone)


def run_redrive(order: RedriveOrder, settings: Settings, progress: Progress, notice: Notice) -> RedriveReport:
    """Raises OptionError, UserError, JobFailed. Interrupted, failed or killed, the next one goes on with
    what is left."""
    from embermq.pipeline.jobs.putting_back import PuttingBack
    from embermq.pipeline.jobs.redrive import RedriveTerms, redrive

    places = Places(Path(settings.data_dir).absolute())
    with ControlClient(places.data_dir) as broker:
        letters_in, queue = _where(broker, queue_name(order.queue))
        terms = RedriveTerms(
            letters_in=letters_in, queue=queue, wanted=order.wanted, tasks=order.tasks, dry=order.dry_run
        )
        door = BrokerDoor(broker, letters_in)
        putting_back = PuttingBack(
            door, rate=order.rate, patience_s=PATIENCE_S, progress=progress, notice=notice
        )
        try:
            with letters_file(
                noted_slot(settings), letters_in, with_bodies=order.wanted is not None
            ) as letters:
                return redrive(settings.pipeline, letters, terms, putting_back)
        except FilterError as error:
            raise OptionError(f"--filter: {error}") from error
        except (PipelineError, StoreError, UserError) as error:
            told = f"; {putting_back.put_back:,} were put back, the others are dead letters still"
            raise JobFailed(f"{error}{told if putting_back.done else ''}") from error


def _where(broker: ControlClient, name: str) -> tuple[str, str]:
    """The queue that the dead letters are in, and the one they come from, "" for any. Raises UserError."""
    found = msgspec.convert(broker.ask(GET_QUEUE_STATS, name=name), _Stats)
    if found.kind == QueueKind.DEAD_LETTERS.value:
        return name, ""
    if not found.dead_letter_queue:
        raise UserError(
            f"queue {name} keeps no dead letters, dlq_config.enabled is false; those that it kept before"
            " are in the queue dlq/…"
        )
    return found.dead_letter_queue, name
