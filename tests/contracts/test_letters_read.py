"""Dead letters on Redis, as the job that puts them back reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.contracts.servers_stores import ServersStores
from tests.contracts.test_queue_store import ENTRY, LETTER, ROW, record
from tests.support.redis_server import RedisServer

from embermq.app.config import Settings
from embermq.app.errors import UserError
from embermq.app.places_noted import note_places
from embermq.app.settings import StoreSettings
from embermq.model.queue_rows import QueueWrites
from embermq.pipeline.sources.dead_letters import Letter, LetterBounds, LetterFile
from embermq.tools.redrive import letters_file

QUEUE = "dlq/tasks/ü"
COUNT = 2_500
"""More than a page."""


@pytest.fixture
def on_redis(redis_server: RedisServer, tmp_path: Path) -> Iterator[ServersStores]:
    opened = ServersStores(redis_server.url, tmp_path)
    yield opened
    opened.close()


def settings(on_redis: ServersStores, data_dir: Path) -> Settings:
    servers = StoreSettings(log="kafka://127.0.0.1:1", session=on_redis.url)
    return Settings(data_dir=str(data_dir), stores=servers)


@pytest.mark.promise("queues-34", "pipeline-12")
def test_all_dead_letters_are_read_with_their_records_on_request(
    on_redis: ServersStores, tmp_path: Path
) -> None:
    letters = [
        replace(ENTRY, queue=5, sequence=number, record=number - 1, dead_letter=LETTER)
        for number in range(1, COUNT + 1)
    ]
    other = replace(ENTRY, queue=3, record=0)
    on_redis.write(
        records=[record(b"%d" % number) for number in range(COUNT)],
        queues=QueueWrites(
            queues={3: ROW, 5: replace(ROW, generation=5, name=QUEUE)},
            entries={(row.queue, row.sequence): row for row in (*letters, other)},
        ),
    )
    for with_bodies in (True, False):
        with letters_file(settings(on_redis, tmp_path), QUEUE, with_bodies=with_bodies) as path:
            with closing(LetterFile(path)) as file:
                file.wait_for_log(0)
                assert file.bounds(QUEUE) == LetterBounds(5, 1, COUNT + 1)
                found = [letter for page in file.letters(5, 1, COUNT + 1) for letter in page]
                assert found == [Letter(n, n - 1, "key/é", LETTER) for n in range(1, COUNT + 1)]
                bodies = [file.record(letter.offset) for letter in found]
            assert bodies == [record(b"%d" % n) if with_bodies else None for n in range(COUNT)]
        assert not path.exists()


def test_a_queue_that_is_not_there_has_none(on_redis: ServersStores, tmp_path: Path) -> None:
    with (
        letters_file(settings(on_redis, tmp_path), QUEUE, with_bodies=True) as path,
        closing(LetterFile(path)) as file,
    ):
        assert file.bounds(QUEUE) is None


def test_whoever_forgets_the_settings_is_told(on_redis: ServersStores, tmp_path: Path) -> None:
    embedded = Settings(data_dir=str(tmp_path))
    for told in ("is not the data directory of a broker", "are in a Redis; give the --config"):
        with pytest.raises(UserError, match=told), letters_file(embedded, QUEUE, with_bodies=False):
            pass
        note_places(tmp_path, settings(on_redis, tmp_path))
    (tmp_path / "broker.db").touch()
    with letters_file(embedded, QUEUE, with_bodies=False) as path:
        assert path == tmp_path / "broker.db"
