"""What a lake in a folder needs to come through a loss of power. Spark leaves it to the system when files reach the
disk, so a commit may be there without the records that it names.

So lake.db names the last commit that was synced, and the boot of the machine. What came later is taken back when the
machine has started since: nothing went by it, the log still has its records.

Several brokers may use one folder in turns (a network file system, and a node that takes over). What another one has
committed is behind what this one's lake.db knows, and is no trace of its loss of power. So each commit carries the
`run` that has made it, which lake.db names too; a commit of any other run is left, with all around it.
"""

import os
import re
from pathlib import Path
from urllib.parse import unquote

import msgspec
from msgspec import Struct, field

LOG = "_delta_log"
_LAST_CHECKPOINT = "_last_checkpoint"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_COMMIT = re.compile(r"\.?(\d{20})\.")
"""Files of a commit, and the checksums that Hadoop keeps beside them."""


class _Added(Struct, frozen=True):
    path: str


class _About(Struct, frozen=True):
    user_metadata: str | None = field(name="userMetadata", default=None)


class _Action(Struct, frozen=True):
    """One line of a commit; only what adds a file, and who says so, counts here."""

    add: _Added | None = None
    about: _About | None = field(name="commitInfo", default=None)


def boot() -> str:
    """Another one after each start of the machine."""
    return _BOOT.read_text().strip() if _BOOT.exists() else ""


def sync_commits(folder: Path, first: int, last: int) -> None:
    """What the commits `first` to `last` have added, and they themselves, are on disk when it returns."""
    log = folder / LOG
    folders = {log, folder, folder.parent}
    files: list[Path] = []
    for number in range(first, last + 1):
        commit = log / f"{number:020}.json"
        if not commit.exists():  # cleaned away: it is old
            continue
        for line in commit.read_bytes().splitlines():
            added = msgspec.json.decode(line, type=_Action).add
            if added is not None and (path := folder / unquote(added.path)).exists():
                files.append(path)
                folders.add(path.parent)
        files += log.glob(f"{number:020}.*")
    if (hint := log / _LAST_CHECKPOINT).exists():
        files.append(hint)
    for path in (*files, *folders):
        _sync(path)


def take_back(folder: Path, last: int, run: str) -> int:
    """Remove the commits behind `last`, the newest first, so that a crash leaves no gap; how many files they were.
    Nothing goes when what would be left is no table: Delta has cleaned its log up since, or it is another table. Nor
    when one of them is not of `run`."""
    log = folder / LOG
    if not _is_whole(log, last):
        return 0
    numbered = ((match, file) for file in log.iterdir() if (match := _COMMIT.match(file.name)))
    later = sorted(((int(match[1]), file) for match, file in numbered if int(match[1]) > last), reverse=True)
    if not all(_may_go(file, run) for number, file in later if file.name == f"{number:020}.json"):
        return 0
    for _, file in later:
        file.unlink()
    if later:
        (log / _LAST_CHECKPOINT).unlink(missing_ok=True)
        _sync(log)
    return len(later)


def _may_go(commit: Path, run: str) -> bool:
    """Whether a commit is of this run; or torn: then nobody has synced it, and so nobody goes by it."""
    try:
        actions = [msgspec.json.decode(line, type=_Action) for line in commit.read_bytes().splitlines()]
    except msgspec.ValidationError:  # whole, by a program that says other things of itself
        return False
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return True
    return not actions or run in [one.about.user_metadata for one in actions if one.about is not None]


def _is_whole(log: Path, last: int) -> bool:
    """Whether the log has all that says what the table was at the commit `last`."""
    checkpoints = (
        int(file.name[:20]) for file in log.glob("*.checkpoint.parquet") if _COMMIT.match(file.name)
    )
    begin = max((number for number in checkpoints if number <= last), default=-1) + 1
    return all((log / f"{number:020}.json").exists() for number in range(min(begin, last), last + 1))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
