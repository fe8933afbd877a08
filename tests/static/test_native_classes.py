"""What `scripts/compile` makes of the source before mypyc sees it."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from embermq.compiled import FORM, LIBRARY, LIST, look
from embermq.mqtt.value import NativeValue, replace
from embermq.mqtt.wire import packets

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "embermq"
SCRIPT = ROOT / "scripts" / "compile"

PAIR = '''"""Two structs."""

from msgspec import Struct, field


class Base(Struct, frozen=True, gc=False):
    """The first."""

    name: str
    count: int = 0


class Derived(Base, gc=False, kw_only=True):
    """The second."""

    parts: list[int] = field(default_factory=list)
    """Of it."""


class Alone(Struct, eq=False):
    """The third."""

    size: int
'''


def _script() -> ModuleType:
    loader = SourceFileLoader("compile_script", str(SCRIPT))
    spec = spec_from_loader("compile_script", loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return _script()


def run(text: str) -> dict[str, Any]:
    """What the text of a module defines."""
    found: dict[str, Any] = {"__name__": "translated", "mypyc_attr": lambda **_: lambda made: made}
    exec(compile(text, "translated", "exec"), found)
    return found


def places(text: str) -> Iterator[tuple[str, int]]:
    """Classes and functions that are written out, and their lines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not (
            node.name == "__init__" and node.body[0].lineno == node.lineno
        ):
            yield node.name, node.lineno


def test_every_line_stays_where_it_is(script: ModuleType) -> None:
    translation = script.Translation()
    for module, structs in script.MODULES.items():
        text = script.file_of(module, PACKAGE).read_text()
        translated = translation.native(text, structs)
        assert len(translated.splitlines()) == len(text.splitlines()), module
        assert sorted(places(translated)) == sorted(places(text)), module


def test_packets_are_what_they_were(script: ModuleType) -> None:
    module = "mqtt.wire.packets"
    text = script.file_of(module, PACKAGE).read_text()
    made = run(script.Translation().native(text, script.MODULES[module]))
    for name in script.MODULES[module]:
        kind, before = made[name], getattr(packets, name)
        assert issubclass(kind, NativeValue)
        assert kind.__struct_fields__ == before.__struct_fields__
        assert kind.__match_args__ == before.__match_args__
    one = made["Publish"]("a", b"b", 1, packet_id=7)
    assert repr(one) == repr(packets.Publish("a", b"b", 1, packet_id=7))
    assert one == made["Publish"]("a", b"b", 1, 7)
    assert hash(one) == hash(made["Publish"]("a", b"b", 1, 7))
    assert one != replace(one, dup=True)
    assert replace(one, dup=True).dup
    assert made["Puback"](7) != made["Pubrec"](7)
    with pytest.raises(TypeError, match="no field 'colour'"):
        replace(one, colour="red")


def test_a_derived_struct_has_the_fields_of_its_base(script: ModuleType) -> None:
    text = script.Translation().native(PAIR, frozenset({"Base", "Derived", "Alone"}))
    assert text.count("acyclic=True") == 2
    made = run(text)
    one, other = made["Derived"]("n", parts=[1]), made["Derived"]("n", 3)
    assert (one.name, one.count, one.parts) == ("n", 0, [1])
    assert (other.count, other.parts) == (3, [])
    assert other.parts is not made["Derived"]("n", 3).parts
    assert made["Derived"].__struct_fields__ == ("name", "count", "parts")
    with pytest.raises(TypeError):
        made["Derived"]("n", 0, [1])
    assert made["Alone"](1) != made["Alone"](1)


def test_a_struct_that_is_gone_is_named(script: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no struct Lost"):
        script.Translation().native(PAIR, frozenset({"Lost"}))


def test_what_is_imported_counts_as_source(script: ModuleType) -> None:
    found = {str(file.relative_to(PACKAGE)) for file in script.sources(PACKAGE)}
    assert {"intake/publishing.py", "mqtt/wire/version.py", "access/authorization/rules.py"} <= found
    assert not any(name.startswith(("cli", "app", "pipeline")) for name in found)


def test_what_is_written_while_it_is_compiled_is_newer(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is as long as what was compiled, which is the copy."""
    package, copy, folder = (tmp_path / name for name in ("embermq", "copy", "compiled"))
    (package / "mqtt").mkdir(parents=True)
    folder.mkdir()
    source = package / "mqtt" / "value.py"
    source.write_text("LIMIT = 1\n")
    monkeypatch.setattr(script, "MODULES", {"mqtt.value": frozenset()})
    states = {source.relative_to(package): source.stat()}
    shutil.copytree(package, copy)
    (folder / "library").write_bytes(b"")
    made = [FORM, EXTENSION_SUFFIXES[0], f"module {LIBRARY} 0 library"]
    (folder / LIST).write_text("\n".join([*made, *script.described(copy, states)]) + "\n")
    assert look(folder, package)[0].is_compiled
    source.write_text("LIMIT = 2\n")
    assert look(folder, package)[0].why.startswith("mqtt/value.py has changed")


def test_when_the_time_is_up_it_says_what_has_none() -> None:
    waits = f"import runpy, signal; runpy.run_path({str(SCRIPT)!r})['give_up_after'](1); signal.pause()"
    done = subprocess.run([sys.executable, "-c", waits], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "TimeUp: it took more than 1 s; `make compile` has no such limit" in done.stderr


@pytest.mark.parametrize("words", [[], ["--possible"]])
def test_without_a_compiler_it_says_what_is_lost(words: list[str], tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CC"}
    done = subprocess.run(
        [sys.executable, SCRIPT, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**environment, "PATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert "there is no C compiler. On Debian: apt-get install gcc" in done.stderr
    assert "runs without it" in done.stderr


def test_who_has_native_classes_changes_values_by_what_knows_them(script: ModuleType) -> None:
    """What is of msgspec.structs refuses them, and the source would not show it."""
    native = frozenset().union(*script.MODULES.values())
    found: list[str] = []
    for file in sorted(PACKAGE.rglob("*.py")):
        imports = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
        ours = [node for node in imports if (node.module or "").startswith("embermq.")]
        names = {alias.name for node in ours for alias in node.names}
        if names & native and any(node.module == "msgspec.structs" for node in imports):
            found.append(str(file.relative_to(PACKAGE)))
    assert found == []
