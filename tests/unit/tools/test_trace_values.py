"""What a trace tells of a record."""

from __future__ import annotations

from embermq.formats.log_record import decode_record, encode_record, slot_field
from embermq.model.message import Message
from embermq.tools.trace_values import _copy_of


def test_a_copy_says_which_record_of_which_slot_it_is_of() -> None:
    message = Message("t", b"", 1, False, "p", 5, 0)
    assert _copy_of(None) == _copy_of(decode_record(encode_record(message))) == ""
    copy = encode_record(message, b"", None, (slot_field(2, 7),))
    assert _copy_of(decode_record(copy)) == "0:7 of slot 2"
