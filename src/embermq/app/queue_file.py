"""`queues.file`: settings of single queues, in TOML or JSON.

[[queues]]                          {"queues": [{
name = "tasks/images"                   "name": "tasks/images",
partitions = 4                          "partitions": 4,
retry_policy.max_retries = 3            "retry_policy": {"max_retries": 3}}]}
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from embermq.queues.errors import SettingsRefused
from embermq.queues.names import queue_name
from embermq.queues.settings import BrokerQueueSettings, QueueSettings, operator_settings

FILE_BYTES_MAX = 16 * 1024 * 1024
TABLE = "queues"


def read_queue_file(path: str) -> tuple[QueueSettings, ...]:
    """Settings by queue, in the order of the file. Raises ValueError that starts with `queues.file`."""
    given = _document(path)
    unknown = next((key for key in given if key != TABLE), "")
    if unknown:
        raise ValueError(f"queues.file: {path}: {unknown[:80]!r}: there is nothing but [[{TABLE}]]")
    tables = given.get(TABLE, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"queues.file: {path}: {TABLE} is no list of tables, written [[{TABLE}]]")
    found: dict[str, QueueSettings] = {}
    for number, table in enumerate(tables, 1):
        name = table.get("name")
        if not isinstance(name, str):
            raise ValueError(f"queues.file: {path}: queue {number} of {len(tables)} has no name")
        name = queue_name(name)
        if name in found:
            raise ValueError(f"queues.file: {path}: queue {name[:80]} stands there twice")
        try:
            found[name] = operator_settings(name, table)
        except SettingsRefused as refusal:
            raise ValueError(f"queues.file: {path}: {refusal}") from None
    return tuple(found.values())


def check_queue_file(settings: BrokerQueueSettings) -> None:
    """Raise ValueError when the file cannot be used."""
    if settings.file:
        found = read_queue_file(settings.file)
        if len(found) > settings.queues_max:
            raise ValueError(
                f"queues.file: {settings.file} has {len(found)} queues, queues.queues_max is {settings.queues_max}"
            )


def _document(path: str) -> dict[str, object]:
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"queues.file: cannot read {path}: {error.strerror}") from None
    except ValueError:  # a NUL in its name
        raise ValueError(f"queues.file: {path!r} is not the name of a file") from None
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"queues.file: {path} has more than {FILE_BYTES_MAX} bytes")
    is_json = path.endswith(".json")
    try:
        document = msgspec.json.decode(data) if is_json else tomllib.loads(data.decode())
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"queues.file: {path} is no valid {'JSON' if is_json else 'TOML'}: {error}"
        ) from None
    except RecursionError:
        raise ValueError(f"queues.file: {path}: lists or tables in one another too deep") from None
    if not isinstance(document, dict):
        raise ValueError(f"queues.file: {path}: an object with {TABLE} is needed")
    return document
