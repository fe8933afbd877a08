"""Values with some fields changed, whether the hot path is compiled or not.

`scripts/compile` makes native classes of the structs of the hot path. These are no structs of msgspec any more, so
`msgspec.structs.replace` does not know them; `replace` here knows both.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar, cast


class _Replaceable(Protocol):
    def __replace__(self, **changes: object) -> object: ...


Value = TypeVar("Value")


def replace(value: Value, **changes: object) -> Value:
    """A value like this one but for these fields."""
    return cast("Value", cast("_Replaceable", value).__replace__(**changes))


class NativeValue:
    """What a struct of msgspec has, for the classes that `scripts/compile` makes of them: equality, hash, text,
    `replace`. Nothing here is on the hot path."""

    __struct_fields__: ClassVar[tuple[str, ...]] = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__struct_fields__)

    def __hash__(self) -> int:
        return hash((type(self), *[getattr(self, name) for name in self.__struct_fields__]))

    def __repr__(self) -> str:
        fields = [f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__]
        return f"{type(self).__name__}({', '.join(fields)})"

    def __replace__(self, **changes: object) -> object:
        fields: dict[str, object] = {name: getattr(self, name) for name in self.__struct_fields__}
        unknown = changes.keys() - fields.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {min(unknown)!r}")
        return type(self)(**{**fields, **changes})

    def __copy__(self) -> object:
        return self.__replace__()
