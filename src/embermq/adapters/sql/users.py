"""Accounts in an SQL database, shared by all who are told its URL."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from itertools import islice
from secrets import token_bytes
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, or_, select, update

from embermq.adapters.sql.database import Database
from embermq.adapters.sql.tables import CHANGES, meta, user_changes, users
from embermq.model.client_type import ClientType
from embermq.ports.users import CHANGES_MAX, Changes, User, Users

CHANGES_KEPT = 10_000
ROWS_AT_ONCE = 1_000
SECRET_BYTES = 32
_SECRET = "user_secret"
_COLUMNS = (
    users.c.name,
    users.c.password_hash,
    users.c.client_type,
    users.c.disabled,
    users.c.created_ms,
    users.c.version,
    users.c.scram,
)
_SET = {
    "password_hash": bindparam("new_hash"),
    "client_type": bindparam("new_type"),
    "disabled": bindparam("new_disabled"),
    "scram": bindparam("new_scram"),
    "version": users.c.version + 1,
}
_UPDATE = update(users).where(users.c.name_key == bindparam("of_key")).values(_SET)


class SqlUsers(Users):
    """See the port. The schema has to be there: see `schema.py`.

    Whoever changes accounts holds the row that counts changes until the commit. So changes are made one after the
    other, whichever process makes them, and are numbered in the order in which others see them, without a gap.
    """

    def __init__(self, database: Database) -> None:
        """Takes the database over: it is closed with this."""
        self._database = database

    def find(self, name: str) -> User | None:
        with self._database.begin("cannot read users") as connection:
            row = connection.execute(select(*_COLUMNS).where(users.c.name_key == _key(name))).first()
        return _user(row) if row is not None else None

    def find_many(self, names: Collection[str]) -> dict[str, User]:
        statement = select(*_COLUMNS).where(users.c.name_key.in_([_key(name) for name in names]))
        with self._database.begin("cannot read users") as connection:
            return {row.name: _user(row) for row in connection.execute(statement).all()}

    def add(self, user: User) -> bool:
        with self._database.begin("cannot add a user") as connection:
            changes = _ChangesBeingMade(connection)
            if _exists(connection, user.name):
                return False
            connection.execute(insert(users), _added(user, changes.add(user.name)))
            changes.write()
        return True

    def update(self, user: User) -> bool:
        with self._database.begin("cannot change a user") as connection:
            changes = _ChangesBeingMade(connection)
            if not connection.execute(_UPDATE, _updated(user)).rowcount:
                return False
            changes.add(user.name)
            changes.write()
        return True

    def replace_hash(self, name: str, before: str, after: str) -> bool:
        statement = (
            update(users)
            .where(users.c.name_key == _key(name), users.c.password_hash == before)
            .values(password_hash=after)
        )
        with self._database.begin("cannot change a user") as connection:
            return bool(connection.execute(statement).rowcount)

    def remove(self, name: str) -> bool:
        with self._database.begin("cannot remove a user") as connection:
            changes = _ChangesBeingMade(connection)
            if not connection.execute(delete(users).where(users.c.name_key == _key(name))).rowcount:
                return False
            changes.add(name)
            changes.write()
        return True

    def is_empty(self) -> bool:
        with self._database.begin("cannot read users") as connection:
            return connection.execute(select(users.c.version).limit(1)).first() is None

    def all(self) -> list[User]:
        """See the port. Read in pages, so that no transaction and no answer is large."""
        found: list[User] = []
        last = b""
        statement = select(users.c.name_key, *_COLUMNS).order_by(users.c.name_key).limit(ROWS_AT_ONCE)
        while True:
            with self._database.begin("cannot read users") as connection:
                page = connection.execute(statement.where(users.c.name_key > last)).all()
            found += (_user(row[1:]) for row in page)
            if len(page) < ROWS_AT_ONCE:
                return sorted(found, key=lambda user: user.name)
            last = page[-1][0]

    def imported_hashes(self) -> list[str]:
        imported = or_(users.c.password_hash.like("$6$%"), users.c.password_hash.like("$7$%"))
        statement = select(users.c.password_hash).where(imported)
        with self._database.begin("cannot read users") as connection:
            return list(connection.execute(statement).scalars())

    def import_all(self, users: Iterable[User], *, replace: bool) -> int:
        count = 0
        source = iter(users)
        with self._database.begin("cannot import users") as connection:
            changes = _ChangesBeingMade(connection)
            while batch := list(islice(source, ROWS_AT_ONCE)):
                count += _import(connection, changes, batch, replace=replace)
            changes.write()
        return count

    def changes(self, after_seq: int) -> Changes:
        """See the port. A store that knows of fewer than that has lost some, as one that was restored has."""
        statement = (
            select(user_changes.c.seq, user_changes.c.name)
            .where(user_changes.c.seq > after_seq)
            .order_by(user_changes.c.seq)
            .limit(CHANGES_MAX)
        )
        with self._database.begin("cannot read changes of users") as connection:
            newest = _newest(connection)
            if newest <= after_seq:
                return Changes(newest, (), complete=newest == after_seq)
            rows = connection.execute(statement).all()
        if not rows:
            return Changes(newest, (), complete=False)
        names = tuple(dict.fromkeys(row.name for row in rows))
        return Changes(rows[-1].seq, names, complete=rows[0].seq == after_seq + 1)

    def newest_change(self) -> int:
        with self._database.begin("cannot read changes of users") as connection:
            return _newest(connection)

    def secret(self) -> bytes:
        with self._database.begin("cannot read the secret of users") as connection:
            found = _secret(connection)
            if found is None:
                _ChangesBeingMade(connection)  # of several that find none, one makes it
                found = _secret(connection)
            if found is None:
                found = token_bytes(SECRET_BYTES)
                connection.execute(insert(meta), {"name": _SECRET, "number": 0, "value": found})
        return found

    def close(self) -> None:
        self._database.close()


class _ChangesBeingMade:
    """The changes of one transaction. From its making on, no other transaction changes accounts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._newest: int = connection.execute(
            select(meta.c.number).where(meta.c.name == CHANGES).with_for_update()
        ).scalar_one()
        self._added: deque[dict[str, object]] = deque(maxlen=CHANGES_KEPT)

    def add(self, name: str) -> int:
        """The number of this change."""
        self._newest += 1
        self._added.append({"seq": self._newest, "name": name})
        return self._newest

    def write(self) -> None:
        """At the end, when there are any."""
        if not self._added:
            return
        rows = iter(self._added)
        while batch := list(islice(rows, ROWS_AT_ONCE)):
            self._connection.execute(insert(user_changes), batch)
        self._connection.execute(
            delete(user_changes).where(user_changes.c.seq <= self._newest - CHANGES_KEPT)
        )
        self._connection.execute(update(meta).where(meta.c.name == CHANGES).values(number=self._newest))


class _Plan(NamedTuple):
    """What becomes of a batch: rows to add by name, and accounts to update in their order."""

    new: dict[str, dict[str, object]]
    changed: list[dict[str, object]]


def _import(connection: Connection, changes: _ChangesBeingMade, batch: list[User], *, replace: bool) -> int:
    """How many of them were added or replaced. A name may come twice: the second time it is there."""
    keys = select(users.c.name_key).where(users.c.name_key.in_([_key(user.name) for user in batch]))
    there = {bytes(key) for key in connection.execute(keys).scalars()}
    plan = _Plan({}, [])
    count = 0
    for user in batch:
        if user.name not in plan.new and _key(user.name) not in there:
            plan.new[user.name] = _added(user, changes.add(user.name))
        elif replace:
            plan.changed.append(_updated(user))
            changes.add(user.name)
        else:
            continue
        count += 1
    if plan.new:
        connection.execute(insert(users), list(plan.new.values()))
    if plan.changed:
        connection.execute(_UPDATE, plan.changed)
    return count


def _key(name: str) -> bytes:
    return sha256(name.encode(errors="surrogatepass")).digest()


def _exists(connection: Connection, name: str) -> bool:
    statement = select(users.c.version).where(users.c.name_key == _key(name))
    return connection.execute(statement).first() is not None


def _newest(connection: Connection) -> int:
    newest: int = connection.execute(select(meta.c.number).where(meta.c.name == CHANGES)).scalar_one()
    return newest


def _secret(connection: Connection) -> bytes | None:
    found = connection.execute(select(meta.c.value).where(meta.c.name == _SECRET)).scalar_one_or_none()
    return bytes(found) if found is not None else None


def _added(user: User, version: int) -> dict[str, object]:
    return {
        "name_key": _key(user.name),
        "name": user.name,
        "password_hash": user.password_hash,
        "client_type": int(user.client_type),
        "disabled": user.disabled,
        "created_ms": user.created_ms,
        "version": version,
        "scram": user.scram,
    }


def _updated(user: User) -> dict[str, object]:
    return {
        "of_key": _key(user.name),
        "new_hash": user.password_hash,
        "new_type": int(user.client_type),
        "new_disabled": user.disabled,
        "new_scram": user.scram,
    }


def _user(row: Sequence[Any]) -> User:
    name, password_hash, client_type, disabled, created_ms, version, scram = row
    return User(name, password_hash, ClientType(client_type), bool(disabled), created_ms, version, scram)
