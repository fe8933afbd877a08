"""Lua in the simulated Redis: our scripts as they are, on the values of `redis_values`."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1
from typing import Any

from lupa.lua51 import LuaError, LuaRuntime
from tests.simulation.redis_values import RedisError, RedisValues, Reply, Status, Words

_COMPILED: dict[bytes, bytes] = {}
"""Source by hash, over all servers."""


class RedisScripts:
    """Runs scripts on `values`. One interpreter serves all servers, one after another: see `_Interpreter`."""

    def __init__(self, values: RedisValues) -> None:
        self._values = values
        self._known: set[bytes] = set()
        commands = values.commands
        commands[b"EVAL"] = self._eval
        commands[b"EVALSHA"] = self._evalsha
        commands[b"SCRIPT"] = self._script

    def forget(self) -> None:
        """The server was started again."""
        self._known.clear()

    def _script(self, what: bytes, *words: bytes) -> Reply:
        if what.upper() != b"LOAD":
            self.forget()
            return Status(b"OK")
        return self._load(words[0])

    def _load(self, source: bytes) -> bytes:
        sha = sha1(source, usedforsecurity=False).hexdigest().encode()
        _COMPILED[sha] = source
        self._known.add(sha)
        return sha

    def _eval(self, source: bytes, *rest: bytes) -> Reply:
        return self._run(self._load(source), rest)

    def _evalsha(self, sha: bytes, *rest: bytes) -> Reply:
        if sha not in self._known:
            raise RedisError("NOSCRIPT No matching script. Please use EVAL.")
        return self._run(sha, rest)

    def _run(self, sha: bytes, rest: Words) -> Reply:
        count = int(rest[0])
        return _INTERPRETER.run(sha, self._values.commands, rest[1 : 1 + count], rest[1 + count :])


class _Interpreter:
    """The one Lua there is: to make one, and to compile our scripts in it, costs more than a short run of a broker."""

    def __init__(self) -> None:
        self._lua = LuaRuntime(encoding=None, register_eval=False, register_builtins=False)
        self._commands: dict[bytes, Callable[..., Reply]] = {}
        self._compiled: dict[bytes, Any] = {}
        table = self._lua.table_from
        self._lua.globals()[b"redis"] = table({b"call": self._call, b"error_reply": self._error_reply})

    def run(self, sha: bytes, commands: dict[bytes, Callable[..., Reply]], keys: Words, args: Words) -> Reply:
        self._commands = commands
        script = self._compiled.get(sha)
        if script is None:
            made = b"return function(KEYS, ARGV)\n" + _COMPILED[sha] + b"\nend"
            script = self._compiled[sha] = self._lua.execute(made)
        try:
            found = script(self._lua.table(*keys), self._lua.table(*args))
        except RedisError:
            raise
        except LuaError as error:
            raise RedisError(f"ERR {error}") from None
        return _to_redis(found)

    def _call(self, name: bytes, *words: object) -> object:
        command = self._commands.get(name)
        if command is None:
            raise RedisError(f"ERR Unknown Redis command called from script: {name!r}")
        reply = command(*[word if type(word) is bytes else _word(word) for word in words])
        return reply if type(reply) is bytes or type(reply) is int else self._to_lua(reply)

    def _error_reply(self, text: bytes) -> object:
        return self._lua.table_from({b"err": text})

    def _to_lua(self, reply: Reply) -> object:
        if reply is None:
            return False
        if isinstance(reply, list):
            return self._lua.table(*map(self._to_lua, reply))
        if isinstance(reply, Status):
            return self._lua.table_from({b"ok": bytes(reply)})
        return reply


def _word(word: object) -> bytes:
    """A number of Lua's."""
    assert isinstance(word, int | float), word
    return b"%d" % word if word == int(word) else b"%.17g" % word


def _to_redis(found: Any) -> Reply:
    if found is None or found is False:
        return None
    if found is True:
        return 1
    if isinstance(found, bytes):
        return found
    if isinstance(found, int | float):
        return int(found)
    error = found[b"err"]
    if error is not None:
        raise RedisError(error.decode())
    if found[b"ok"] is not None:
        return Status(found[b"ok"])
    answer: list[Reply] = []
    for at in range(1, len(found) + 1):
        one = found[at]
        if one is None:
            break
        answer.append(_to_redis(one))
    return answer


_INTERPRETER = _Interpreter()
