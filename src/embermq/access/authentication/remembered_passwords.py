"""Passwords that were right are remembered, so that a client that comes again costs no slow hash."""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Iterable
from secrets import token_bytes
from threading import Lock

from embermq.model.counters import Counters

KEY_BYTES = 32
DIGEST_BYTES = 16


class RememberedPasswords:
    """A keyed digest for each of at most `accounts_max` accounts; the one that was used longest ago goes first.

    The digest covers name, password and the hash that the password was checked by, so it fits nothing but the account
    as it was then: whoever changes a password, by whichever process, ends it with that. The key is made by the process
    and dies with it. May be called from any thread.
    """

    def __init__(self, accounts_max: int, counters: Counters) -> None:
        self._accounts_max = accounts_max
        self._counters = counters
        self._key = token_bytes(KEY_BYTES)
        self._digests: OrderedDict[str, bytes] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._digests)

    def knows(self, name: str, password_hash: str, password: bytes) -> bool:
        """Whether the account has this hash and the password was found to be that of it. Takes the same work for every
        name."""
        digest = self._digest(name, password_hash, password)
        with self._lock:
            kept = self._digests.get(name, b"")
            if not hmac.compare_digest(kept, digest):
                return False
            self._digests.move_to_end(name)
        return True

    def keep(self, name: str, password_hash: str, password: bytes) -> None:
        """Remember that this password is the one of this hash."""
        if not self._accounts_max:
            return
        digest = self._digest(name, password_hash, password)
        with self._lock:
            self._digests[name] = digest
            self._digests.move_to_end(name)
            if len(self._digests) > self._accounts_max:
                self._digests.popitem(last=False)
                self._counters.passwords_evicted += 1

    def forget(self, names: Iterable[str]) -> None:
        """Drop what these accounts entered with before."""
        with self._lock:
            for name in names:
                self._digests.pop(name, None)

    def forget_all(self) -> None:
        """The same for every account."""
        with self._lock:
            self._digests.clear()

    def _digest(self, *parts: str | bytes) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=DIGEST_BYTES)
        for part in parts:
            data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
            digest.update(len(data).to_bytes(4, "big"))
            digest.update(data)
        return digest.digest()
