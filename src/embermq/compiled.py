"""The hot path, compiled: finds what `scripts/compile` has left in `_compiled`, and says why where it is not used.

Importing `embermq` calls `use`. Compiled modules stand beside the source and not in its place: they are used only while
every source they were made of is the same, so an old one is never in front of a newer source.

The environment variable EMBER_COMPILED says `0` for the source in any case, and `1` for an error where nothing compiled
can be used; unset, the broker takes what there is. It is no setting of the broker: those begin with `EMBERMQ_`.

All modules are in one library, which is loaded before any of them: where this machine cannot load it, all of the source
is used, since half of it would not fit the other half.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

VARIABLE = "EMBER_COMPILED"
PACKAGE = Path(__file__).parent
FOLDER = PACKAGE / "_compiled"
LIST = "list.txt"
"""In it: the form of the list, the suffix of extension modules of this Python, then a line
`source SHA256 BYTES CTIME_NS PATH` for all that was read and `module NAME BYTES FILE` for all that was made.
`by SHA256` is for `scripts/compile` itself."""
FORM = "embermq compiled 3"
LIBRARY = "embermq_hot__mypyc"
"""The module in which all others are."""


class CompiledUnusable(ImportError):
    """EMBER_COMPILED is 1, and there is nothing to use."""


class HotPath(NamedTuple):
    """What runs here: `why` is "" where it is compiled, and else says what keeps it from being used."""

    is_compiled: bool
    why: str
    is_stale: bool = False
    """Whether something was compiled that cannot be used: it does not fit the source any more, or cannot be loaded."""


class _Finder:
    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, str(file)))


def use(folder: Path = FOLDER, package: Path = PACKAGE) -> HotPath:
    """Have the compiled modules imported where there are any that fit. Called before any module of the hot path is."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in {"", "0", "1"}:
        raise CompiledUnusable(f"{VARIABLE} is {wanted!r}; it may be 0, 1 or unset")
    if wanted == "0":
        return HotPath(False, f"{VARIABLE} is 0")
    found, files = look(folder, package)
    if found.is_compiled:
        found = _load(files)
    if wanted == "1" and not found.is_compiled:
        raise CompiledUnusable(f"{VARIABLE} is 1, and the hot path cannot be used compiled: {found.why}")
    return found


def _load(files: dict[str, Path]) -> HotPath:
    """Load the library, of which nothing runs yet; its modules are imported from it when somebody wants them."""
    finder = _Finder(files)
    sys.meta_path.insert(0, finder)
    try:
        import_module(LIBRARY)
    except ImportError as error:
        sys.meta_path.remove(finder)
        return _stale(f"what was compiled cannot be loaded: {error}")
    return HotPath(True, "")


def look(folder: Path, package: Path) -> tuple[HotPath, dict[str, Path]]:
    """Whether what is in the folder fits the sources of the package, and its files by the names of their modules."""
    try:
        lines = (folder / LIST).read_text().splitlines()
    except OSError:
        return HotPath(False, "not compiled; `make compile` does that"), {}
    except ValueError:
        lines = []
    if lines[:1] != [FORM]:
        return _stale("compiled by another version of EmberMQ"), {}
    if lines[1:2] != EXTENSION_SUFFIXES[:1]:
        return _stale(f"compiled for another Python ({' '.join(lines[1:2])})"), {}
    try:
        return _compare(lines[2:], folder, package)
    except ValueError:
        return _stale(f"{LIST} cannot be read"), {}


def _compare(lines: Sequence[str], folder: Path, package: Path) -> tuple[HotPath, dict[str, Path]]:
    """Raises ValueError for a line that is none."""
    files: dict[str, Path] = {}
    for line in lines:
        kind, rest = line.split(" ", 1)
        if kind == "source":
            digest, size, changed, name = rest.split(" ", 3)
            if not _is_same(package / name, digest, int(size), int(changed)):
                return _stale(f"{name} has changed since it was compiled"), {}
        elif kind == "module":
            module, size, name = rest.split(" ", 2)
            files[module] = folder / name
            if not _has_size(files[module], int(size)):
                return _stale(f"{name} is missing or cut off"), {}
    if LIBRARY not in files:
        return _stale(f"{LIBRARY} is missing"), {}
    return HotPath(True, ""), files


def _stale(why: str) -> HotPath:
    return HotPath(False, f"{why}; `make compile` does it again", is_stale=True)


def _is_same(source: Path, digest: str, size: int, changed_ns: int) -> bool:
    """A source that has the size and the time of change that it had is not read. That time is the one which only the
    system sets: two archives may give their files the same time of modification."""
    try:
        state = source.stat()
        if state.st_size != size:
            return False
        return state.st_ctime_ns == changed_ns or digest_of(source.read_bytes()) == digest
    except OSError:
        return False


def _has_size(file: Path, size: int) -> bool:
    try:
        return file.stat().st_size == size
    except OSError:
        return False


def digest_of(source: bytes) -> str:
    """What tells one source from another."""
    from hashlib import sha256

    return sha256(source).hexdigest()


HOT_PATH = use()
"""Of this process."""
