"""`embermq pipeline audit`: what is asked for, the folder of a report, and its signature.

A report is a folder: a page, tables, and a statement of all of them with their hashes, which is signed. The key is the
broker's own, made with its first report; whoever has its public half can check a report anywhere.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from msgspec import Struct

from embermq.app.config import Settings
from embermq.app.errors import UserError
from embermq.app.pipeline_side import driver_settings
from embermq.app.settings import SQLITE
from embermq.app.slots import asked_slots
from embermq.pipeline.jobs.audit_values import AuditedLog, AuditReport
from embermq.pipeline.places import Places
from embermq.tools.report_folder import (
    TABLES,
    PastOrder,
    data_of,
    lift_tables,
    now,
    past_range,
    report_folder,
    unfinished,
)

if TYPE_CHECKING:
    from embermq.pipeline.jobs.audit import Copy, Progress
    from embermq.pipeline.settings import PipelineSettings

KEY, PUBLIC_KEY = "audit.key", "audit.pub"
"""In the data directory."""
FOLDER = "audits"
PAGE, REPORT, STATEMENT, SIGNATURE = "audit.html", "report.json", "statement.json", "statement.sig"
_UNSIGNED = {STATEMENT, SIGNATURE}


class AuditDone(Struct, frozen=True):
    """`folder` is "" for a dry run."""

    report: AuditReport
    folder: str


class Statement(Struct, frozen=True):
    """What is signed: which files a report has, by name, with their SHA-256."""

    made_at: str
    logs: tuple[AuditedLog, ...]
    differences: int
    files: dict[str, str]


class Verified(Struct, frozen=True):
    """A report that is as it was made: its statement, and the key that has signed it."""

    statement: Statement
    key: str


def run_audit_of(order: PastOrder, settings: Settings, progress: Progress) -> AuditDone:
    """Raises OptionError, UserError, StartError, JobFailed, PipelineError, StoreError."""
    from embermq.pipeline.jobs.audit import run_audit
    from embermq.pipeline.jobs.audit_page import audit_page

    data_dir = data_of(settings, by_slot=True)
    slots, made_at, places = asked_slots(settings, order.slot), now(), Places(data_dir)
    wanted = past_range(order.start, order.end, len(slots))
    folder = report_folder(order.into, data_dir / FOLDER, made_at)
    logs: list[tuple[PipelineSettings, Copy | None]] = [(driver_settings(one), None) for one in slots]
    if settings.stores.log != SQLITE:
        from embermq.tools.audit_servers import copy_settlements  # its client is not in every installation

        logs = [(driver_settings(one), partial(copy_settlements, one)) for one in slots]
    audit = partial(run_audit, logs, places, wanted, tasks=order.tasks, progress=progress)
    if order.dry_run:
        return AuditDone(audit(into=None).report, "")
    with unfinished(folder) as work:
        found = audit(into=work / TABLES)
        key = _own_key(data_dir)
        at, report = made_at.isoformat(timespec="seconds"), found.report
        lift_tables(work)
        (work / REPORT).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
        (work / PAGE).write_text(audit_page(found, at, fingerprint(key.public_key())), encoding="utf-8")
        files = {name: _hash(work / name) for name in sorted(_names(work))}
        statement = Statement(at, report.logs, report.differences_count, files)
        _sign(work, statement, key)
    return AuditDone(report, str(folder))


def verify(folder: Path, key_file: Path) -> Verified:
    """Raises UserError when it is not what the broker with that key has made."""
    try:
        key = load_pem_public_key(key_file.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{key_file} is no public key: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise UserError(f"{key_file} is no key of a broker")
    try:
        signed, signature = (folder / STATEMENT).read_bytes(), (folder / SIGNATURE).read_bytes()
        key.verify(bytes.fromhex(signature.decode("ascii").strip()), signed)
        statement = msgspec.json.decode(signed, type=Statement)
    except OSError as error:
        raise UserError(f"{folder} has no report: {error}") from None
    except (InvalidSignature, ValueError):
        raise UserError(f"{folder}: its statement was not signed with the key {fingerprint(key)}") from None
    there = _names(folder) - _UNSIGNED
    for name in sorted(there ^ statement.files.keys()):
        told = "was added" if name in there else "is missing"
        raise UserError(f"{folder}: {name} {told}")
    for name, expected in statement.files.items():
        if _hash(folder / name) != expected:
            raise UserError(f"{folder}: {name} is not what was signed")
    return Verified(statement, fingerprint(key))


def fingerprint(key: Ed25519PublicKey) -> str:
    """Of a public key, for people to compare."""
    return sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:32]


def _own_key(data_dir: Path) -> Ed25519PrivateKey:
    """Made the first time. Raises UserError."""
    path = data_dir / KEY
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            fresh = Ed25519PrivateKey.generate()
            file.write(fresh.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            os.fsync(file.fileno())
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is no key: {error}; without the file a new one is made") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError(f"{path} is no key of a broker")
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (data_dir / PUBLIC_KEY).write_bytes(public)
    return key


def _sign(folder: Path, statement: Statement, key: Ed25519PrivateKey) -> None:
    encoded = msgspec.json.format(msgspec.json.encode(statement), indent=1)
    (folder / STATEMENT).write_bytes(encoded)
    (folder / SIGNATURE).write_text(key.sign(encoded).hex() + "\n", encoding="ascii")


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _hash(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()
