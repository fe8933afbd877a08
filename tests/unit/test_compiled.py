"""What is compiled is used only while it fits the source."""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from embermq import HOT_PATH, compiled
from embermq.compiled import FORM, LIBRARY, LIST, VARIABLE, CompiledUnusable, HotPath, digest_of, look, use

SOURCE = "LIMIT = 1\n"
MODULE = f"embermq.hot{EXTENSION_SUFFIXES[0]}"
LIBRARY_FILE = f"{LIBRARY}{EXTENSION_SUFFIXES[0]}"
CONTENT = b"no library"


class Built:
    """A package of one module, and what was compiled of it."""

    def __init__(self, at: Path) -> None:
        self.package, self.folder = at / "embermq", at / "embermq" / "_compiled"
        self.folder.mkdir(parents=True)
        self.source = self.package / "hot.py"
        self.source.write_text(SOURCE)
        for name in (MODULE, LIBRARY_FILE):
            (self.folder / name).write_bytes(CONTENT)
        self.describe()

    def describe(self, form: str = FORM, suffix: str = EXTENSION_SUFFIXES[0]) -> None:
        state = self.source.stat()
        digest = digest_of(SOURCE.encode())
        lines = (
            form,
            suffix,
            f"by {digest}",
            f"source {digest} {state.st_size} {state.st_ctime_ns} hot.py",
            f"module embermq.hot {len(CONTENT)} {MODULE}",
            f"module {LIBRARY} {len(CONTENT)} {LIBRARY_FILE}",
        )
        (self.folder / LIST).write_text("\n".join(lines) + "\n")

    @property
    def found(self) -> HotPath:
        return look(self.folder, self.package)[0]


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return Built(tmp_path)


def test_what_was_made_of_this_source_is_used(built: Built) -> None:
    found, files = look(built.folder, built.package)
    assert found == HotPath(True, "")
    assert files == {"embermq.hot": built.folder / MODULE, LIBRARY: built.folder / LIBRARY_FILE}


def test_a_source_that_was_only_touched_is_the_same(built: Built) -> None:
    os.utime(built.source, ns=(1, 1))
    assert built.found.is_compiled


def test_a_changed_source_is_in_front(built: Built) -> None:
    """Also where it is as long and has the time of modification that it had, as files of archives may."""
    before = built.source.stat()
    built.source.write_text(SOURCE.replace("1", "2"))
    os.utime(built.source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert built.found == HotPath(
        False, "hot.py has changed since it was compiled; `make compile` does it again", is_stale=True
    )


def test_a_longer_source_is_in_front_whatever_its_time(built: Built) -> None:
    before = built.source.stat()
    built.source.write_text(SOURCE + SOURCE)
    os.utime(built.source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert built.found.is_stale


def test_a_source_that_is_gone_makes_all_of_it_old(built: Built) -> None:
    built.source.unlink()
    assert built.found.why.startswith("hot.py has changed")


def test_what_another_python_made_is_not_used(built: Built) -> None:
    built.describe(suffix=".cpython-399.so")
    assert ".cpython-399.so" in built.found.why


def test_what_another_version_made_is_not_used(built: Built) -> None:
    built.describe(form="embermq compiled 0")
    assert "another version" in built.found.why


def test_a_file_that_is_missing_is_named(built: Built) -> None:
    (built.folder / MODULE).unlink()
    assert built.found.why.startswith(f"{MODULE} is missing")


def test_a_file_that_is_cut_off_is_named(built: Built) -> None:
    (built.folder / MODULE).write_bytes(CONTENT[:-1])
    assert built.found.why.startswith(f"{MODULE} is missing or cut off")


@pytest.mark.parametrize("text", ["module one", "source 1 2", "module a many b", "nothing", ""])
def test_a_list_that_cannot_be_read_is_not_used(built: Built, text: str) -> None:
    with (built.folder / LIST).open("a") as listed:
        listed.write(f"{text}\n")
    assert built.found.why.startswith(f"{LIST} cannot be read")


def test_a_list_without_the_library_is_not_used(built: Built) -> None:
    lines = (built.folder / LIST).read_text().splitlines(keepends=True)
    (built.folder / LIST).write_text("".join(lines[:-1]))
    assert built.found.why.startswith(f"{LIBRARY} is missing")


def test_a_list_that_is_no_text_is_not_used(built: Built) -> None:
    (built.folder / LIST).write_bytes(b"\xff\xfe")
    assert built.found.is_stale


def test_a_library_that_cannot_be_loaded_leaves_the_source(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one for another system, on a disk that allows no programs, or damaged."""
    monkeypatch.delitem(sys.modules, LIBRARY, raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    finders = list(sys.meta_path)
    found = use(built.folder, built.package)
    assert (found.is_compiled, found.is_stale) == (False, True)
    assert found.why.startswith("what was compiled cannot be loaded: ")
    assert LIBRARY_FILE in found.why
    assert sys.meta_path == finders
    assert LIBRARY not in sys.modules
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(CompiledUnusable, match="cannot be loaded"):
        use(built.folder, built.package)


def test_nothing_compiled_is_not_old(built: Built) -> None:
    (built.folder / LIST).unlink()
    assert built.found == HotPath(False, "not compiled; `make compile` does that")


def test_the_finder_knows_its_modules_alone(built: Built) -> None:
    finder = compiled._Finder(look(built.folder, built.package)[1])
    spec = finder.find_spec("embermq.hot", None)
    assert spec is not None
    assert spec.origin == str(built.folder / MODULE)
    assert finder.find_spec("embermq.cold", None) is None


def test_the_variable_decides(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    assert use(built.folder, built.package) == HotPath(False, "EMBER_COMPILED is 0")
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(CompiledUnusable, match="'yes'"):
        use(built.folder, built.package)
    monkeypatch.setenv(VARIABLE, "1")
    (built.folder / LIST).unlink()
    with pytest.raises(CompiledUnusable, match="not compiled"):
        use(built.folder, built.package)


def test_tests_run_what_they_were_told_to() -> None:
    from embermq.mqtt.wire import decoder

    assert HOT_PATH.is_compiled == (os.environ[VARIABLE] == "1")
    assert str(decoder.__file__).endswith(".py") == (not HOT_PATH.is_compiled)
