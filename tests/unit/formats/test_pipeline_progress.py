"""The layout of what the pipeline says of its progress."""

from __future__ import annotations

import pytest

from embermq.formats.pipeline_progress import (
    LOG_HEADER,
    Progress,
    progress_key,
    progress_topic,
    read_progress,
)

Headers = list[tuple[str, bytes | None]]


def test_what_is_written_is_read() -> None:
    key = progress_key("dispatch", 12)
    assert key == b"dispatch;12"
    headers: Headers = [(LOG_HEADER, b"id")]
    assert read_progress(key, b"700", headers, "id") == Progress("dispatch", 12, 700)
    assert read_progress(key, b"700", [*headers, ("later", None)], "id") == Progress("dispatch", 12, 700)
    assert read_progress(key, b"700", None, "id") == Progress("dispatch", 12, 700)
    assert progress_topic("a.b") == "a.b.pipeline.progress"


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (None, b"1", None),
        (b"dispatch", b"1", None),
        (b";1", b"1", None),
        (b"dispatch;", b"1", None),
        (b"dispatch;x", b"1", None),
        (b"\xff;\xff", b"1", None),
        (b"dispatch;0", None, None),
        (b"dispatch;0", b"-1", None),
        (b"dispatch;0", b"", None),
        (b"dispatch;0", b"1" * 20, None),
        (b"dispatch;0", b"1", [(LOG_HEADER, b"another log")]),
        (b"dispatch;0", b"1", [(LOG_HEADER, None)]),
    ],
)
def test_what_says_nothing_of_this_log(
    key: bytes | None, value: bytes | None, headers: Headers | None
) -> None:
    assert read_progress(key, value, headers, "id") is None
