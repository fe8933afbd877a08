"""One driver at a time on a data directory."""

import os
from pathlib import Path
from threading import Timer

import pytest

from embermq.app.config import load_configuration
from embermq.app.errors import UserError
from embermq.app.pipeline_run import run_pipeline
from embermq.pipeline.driver_lock import lock_driver
from embermq.pipeline.errors import DriverLockError
from embermq.pipeline.places import Places


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
