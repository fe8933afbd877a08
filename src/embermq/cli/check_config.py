"""`embermq check-config`: the effective settings, and where each came from."""

from __future__ import annotations

import json

import msgspec

from embermq.app.errors import StartError
from embermq.app.log_side import log_worth
from embermq.app.pipeline_side import missing_for_spark
from embermq.cli.options import (
    AllowAnonymous,
    AsJson,
    Assignments,
    ConfigFile,
    DataDir,
    NoPipeline,
    configuration,
)


def command(
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    allow_anonymous: AllowAnonymous = False,
    no_pipeline: NoPipeline = False,
    as_json: AsJson = False,
) -> None:
    """Show the settings in force, and their origin. They are those that run would use with the same options; or it says
    what is wrong with them.

    With a message log in Kafka, also show what an acknowledgement means there, and whether the pipeline can read it.
    """
    found = configuration(
        config, assignments, data_dir, allow_anonymous=allow_anonymous, no_pipeline=no_pipeline
    )
    worth = log_worth(found.settings)
    problem = missing_for_spark(found.settings)
    if as_json:
        document = {"settings": msgspec.to_builtins(found.shown), "origins": found.origins}
        if worth:
            document["log"] = worth
        print(json.dumps(document, indent=2))
        _refuse(problem)
        return
    rows = [
        (item.key, json.dumps(msgspec.to_builtins(item.value)), item.origin) for item in found.effective()
    ]
    key_width = max(len(key) for key, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows)
    for key, value, origin in rows:
        came_from = "" if origin == "default" else f"from {origin}"
        print(f"{key:<{key_width}}  {value:<{value_width}}  {came_from}".rstrip())
    if worth:
        print(f"\nmessage log: {worth}")
    _refuse(problem)


def _refuse(problem: str) -> None:
    """As `run` would."""
    if problem:
        raise StartError(problem)
