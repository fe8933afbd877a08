"""What all writes of a tick have in common: a new kind of operation needs its field here, and its stores."""

from typing import ClassVar, Self

from msgspec import Struct
from msgspec.structs import astuple


class Writes(Struct):
    """Fields are lists, sets and dicts, numbers that only grow (-1: unchanged), and such structs; those named in
    `FALLS` are nothing without the records of their tick."""

    FALLS: ClassVar[frozenset[str]] = frozenset()

    def __bool__(self) -> bool:
        """False when nothing would change."""
        return any(astuple(self))

    def is_empty(self) -> bool:
        """True when nothing would change."""
        return not self

    def put_before(self, kept: Self) -> None:
        """Take what a tick wanted whose records could not be stored, in front of what is here."""
        for name in self.__struct_fields__:
            before = getattr(kept, name)
            if name in self.FALLS or not before:
                continue
            here = getattr(self, name)
            if isinstance(here, Writes):
                here.put_before(before)
            elif isinstance(here, list):
                here[:0] = before
            elif isinstance(here, (dict, set)):
                setattr(self, name, before | here)
            else:
                setattr(self, name, max(before, here))
