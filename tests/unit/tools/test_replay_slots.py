"""A replay in a cluster with several slots: whose messages, and which node takes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from embermq.app.config import Settings
from embermq.app.errors import OptionError, UserError
from embermq.app.places_noted import note_places
from embermq.app.settings import StoreSettings
from embermq.cluster.settings import ClusterSettings
from embermq.cluster.slots import slot_of
from embermq.tools.replay import ReplayOrder, ReplayWords, run_replay

SETTINGS = Settings(
    cluster=ClusterSettings(etcd="etcd://box/cars", slots=2, listen="127.0.0.1:7946"),
    stores=StoreSettings(log="kafka://127.0.0.1:1", session="redis://box/3"),
)


def order(slot: int | None, start: str = "earliest", **words: str) -> ReplayOrder:
    return ReplayOrder(words=ReplayWords(start=start, **words), rate=1.0, slot=slot)


def test_it_says_whose_messages_and_goes_to_the_node_of_the_client(tmp_path: Path) -> None:
    settings = replace(SETTINGS, data_dir=str(tmp_path))
    note_places(tmp_path, settings, 0)
    elsewhere = next(each for each in map("app{}".format, range(100)) if slot_of(each, 2) == 1)
    with pytest.raises(UserError, match=f"the client '{elsewhere}' is of slot 1, and its log is there"):
        run_replay(order(0, client=elsewhere), settings, lambda *_: None, lambda _: None)
    with pytest.raises(OptionError, match="--slot: 2 is none of them: the cluster has slots 0 to 1"):
        run_replay(order(2, topic="again"), settings, lambda *_: None, lambda _: None)
    with pytest.raises(OptionError, match="--from: 0:7 is a position in the log of one slot: name that"):
        run_replay(order(None, "0:7", topic="again"), settings, lambda *_: None, lambda _: None)
