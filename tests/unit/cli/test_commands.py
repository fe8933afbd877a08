"""The program as a user types it, in a process of its own where that matters."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.forked_program import run_program

from embermq import HOT_PATH, __version__
from embermq.cli.main import COMMANDS, main

EMBERMQ = [sys.executable, "-m", "embermq"]
TIMEOUT_S = 60


def typed(*words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return run_program(*words, stdin=stdin, environment=environment)


@pytest.mark.parametrize(
    "group",
    [
        *(
            [name]
            for name in (
                "users",
                "bans",
                "sessions",
                "queues",
                "tokens",
                "messages",
                "log",
                "acl",
                "certs",
                "cluster",
                "pipeline",
                "rules",
                "service",
                "bench",
            )
        ),
        [],
        ["queues", "dlq"],
        ["pipeline", "rejected"],
        ["sessions", "parked"],
    ],
    ids=" ".join,
)
def test_no_line_of_a_list_of_commands_is_cut_off(
    group: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*group, "--help"]) == 0
    commands = capsys.readouterr().out.partition("\nCommands:\n")[2]
    assert commands
    assert "..." not in commands


def test_help_names_values_by_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ""
    for words in (["queues", "peek"], ["bans", "add"], ["sessions", "parked", "delete"]):
        assert main([*words, "--help"]) == 0
        shown += capsys.readouterr().out
    for told in (
        "peek [OPTIONS] NAME",
        "--count N  ",
        "{client_id|user|address} VALUE",
        "--reason TEXT  ",
        "[NUMBERS...]",
    ):
        assert told in shown
    assert " range>" not in shown and "<str>" not in shown


def test_help_lists_commands_by_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = re.findall(
        r"^  ([a-z-]+)  ", capsys.readouterr().out.partition("\nCommands:\n")[2], re.MULTILINE
    )
    assert listed == [*COMMANDS, "pub", "sub", "bench"]


@pytest.mark.parametrize("words", [["pub", "-h"], ["queues", "peek"], ["sessions", "lst"]], ids=" ".join)
def test_a_mistake_says_where_help_is(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Also one that the parser finds before it knows the command."""
    assert main(words) == 2
    assert re.search(r" \(see embermq [a-z ]+ --help\)$", capsys.readouterr().err, re.MULTILINE)


def test_help_says_what_exit_codes_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n    {code}  " in shown for code in ("0  ", "1  ", "2  ", "3  ", "130"))


def test_the_version_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"embermq {__version__}\n"


def test_no_words_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Usage: embermq" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["versoin"], "embermq: No such command 'versoin'. Did you mean 'version'?"),
        (["version", "--jsn"], "embermq: No such option: --jsn"),
        (["version", "extra"], "embermq: Got unexpected extra argument"),
        (["check-config", "--set", "device.ttl_s=0"], "embermq: device.ttl_s: 0 is less than"),
        (
            ["check-config", "--config", "/nowhere.toml"],
            "embermq: cannot read the configuration /nowhere.toml",
        ),
        (["users", "add"], "embermq: Missing argument"),
        (["users", "add", "ann", "--type", "boss"], "embermq: Invalid value for '--type'"),
        (["users", "list", "--set", "log.durability=no"], "embermq: log.durability: 'no' is not one of"),
        (["run", "--set", "listeners.wss=127.0.0.1:1"], "embermq: listeners.wss: needs tls.cert"),
        (["users", "add", ""], "embermq: a user name has 1 to 65535 bytes, this one has 0"),
        (["users", "add", "a\x1b"], "embermq: the user name 'a\\x1b' has characters that cannot be shown"),
        (["users", "add", "ann", "bob"], "embermq: 2 names: only --generate adds more than one account"),
        (["users", "copy", "--from", "sqlite"], "embermq: --from names the store that stores.static names"),
        (["tokens", "create", "a b"], "embermq: 'a b' cannot name a token"),
        (["tokens", "create", "a", "--expires", "5x"], "embermq: --expires: '5x' is no duration"),
        (["tokens", "create", "a", "--expires", "0s"], "embermq: --expires: 0s is over at once"),
        (["sessions", "parked", "delete", "c"], "embermq: say either the numbers of messages"),
        (["queues", "dlq", "retry", "q"], "embermq: say either the ids of dead letters"),
        (
            ["queues", "dlq", "retry", "q", "--all", "--rate", "nan"],
            "embermq: Invalid value for '--rate': nan",
        ),
        (["messages", "show", "--topic", "a/#"], "embermq: 'a/#' has wildcards"),
        (
            ["messages", "prune", "--older-than-hours", "nan"],
            "embermq: Invalid value for '--older-than-hours': nan",
        ),
        (
            ["messages", "prune", "--older-than-hours", "inf"],
            "embermq: Invalid value for '--older-than-hours': inf",
        ),
        (
            ["pipeline", "redrive", "--queue", "q", "--rate", "nan"],
            "embermq: Invalid value for '--rate': nan",
        ),
        (
            ["pipeline", "fetch-jars", "--from", "xyz"],
            "embermq: --from: a Maven repository is named by a URL",
        ),
    ],
)
def test_a_users_mistake_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(told)
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_check_config_shows_values_and_origins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EMBERMQ_DEVICE__TTL_S", "60")
    config = tmp_path / "ember.toml"
    config.write_text("[log]\ndurability = 'os'\n")
    words = [
        "check-config",
        "--config",
        str(config),
        "--no-pipeline",
        "--allow-anonymous",
        "--data-dir",
        "here",
    ]
    assert main(words) == 0
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in capsys.readouterr().out.splitlines()}
    assert rows["device.ttl_s"] == ["60", "from EMBERMQ_DEVICE__TTL_S"]
    assert rows["log.durability"] == ['"os"', f"from {config}"]
    assert rows["pipeline.enabled"] == ["false", "from --no-pipeline"]
    assert rows["clients.allow_anonymous"] == ["true", "from --allow-anonymous"]
    assert rows["data_dir"] == ['"here"', "from --data-dir"]
    assert rows["log.retention_hours"] == ["24.0"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["log"]["durability"] == "os"
    assert document["origins"]["device.ttl_s"] == "EMBERMQ_DEVICE__TTL_S"


def test_check_config_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", "--data-dir", str(tmp_path / "new")]) == 0
    assert list(tmp_path.iterdir()) == []
    assert "new" in capsys.readouterr().out


def test_version_tells_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["embermq"], found["pyspark"]) == (__version__, "4.2.1")
    assert set(found) == {"embermq", "compiled", "python", "pyspark", "java", "sqlite"}
    assert found["compiled"] == ("yes" if HOT_PATH.is_compiled else f"no: {HOT_PATH.why}")


def test_users_come_and_go(tmp_path: Path) -> None:
    place = ["--data-dir", str(tmp_path / "data")]
    added = typed("users", "add", "billing", "--type", "application", *place, stdin="s3cret\n")
    assert (added.returncode, added.stdout) == (0, "added billing (application)\n")
    assert added.stderr.startswith(f"made the data directory {tmp_path}/data: ")
    second = typed("users", "add", "ann", *place, stdin="other")
    assert (second.returncode, second.stderr) == (0, "")
    again = typed("users", "add", "billing", *place, stdin="other\n")
    assert (again.returncode, again.stderr) == (1, "embermq: there is a user 'billing' already\n")

    listed = json.loads(typed("users", "list", "--json", *place).stdout)
    assert [(user["name"], user["type"], user["disabled"]) for user in listed] == [
        ("ann", "device", False),
        ("billing", "application", False),
    ]
    rows = [line.split()[:4] for line in typed("users", "list", *place).stdout.splitlines()]
    assert rows == [
        ["user", "type", "state", "scram"],
        ["ann", "device", "enabled", "no"],
        ["billing", "application", "enabled", "no"],
    ]
    assert typed("users", "remove", "billing", *place).stdout == "removed billing\n"
    gone = typed("users", "remove", "billing", *place)
    assert (gone.returncode, gone.stderr) == (1, "embermq: there is no user 'billing'\n")


def test_generated_passwords_are_shown_once_for_as_many_names_as_are_given(tmp_path: Path) -> None:
    place = ["--data-dir", str(tmp_path)]
    made = typed("users", "add", "--generate", "pump-1", "pump-2", *place)
    assert made.returncode == 0, made.stderr
    rows = [line.split("\t") for line in made.stdout.splitlines()]
    assert [name for name, _ in rows] == ["pump-1", "pump-2"]
    assert all(len(bytes.fromhex(password)) == 16 for _, password in rows)
    assert rows[0][1] != rows[1][1]
    taken = typed("users", "add", "--generate", "pump-3", "pump-1", *place)
    assert (taken.returncode, taken.stderr) == (1, "embermq: there is a user 'pump-1' already\n")
    twice = typed("users", "add", "--generate", "pump-3", "pump-3", *place)
    assert twice.stderr == "embermq: the user 'pump-3' is named twice; nobody was added\n"
    assert taken.stdout == twice.stdout == ""
    changed = typed("users", "password", "--generate", "pump-2", *place).stdout
    assert changed.split("\t")[0] == "pump-2"
    listed = typed("users", "list", "--json", *place).stdout
    assert [user["name"] for user in json.loads(listed)] == ["pump-1", "pump-2"]
    assert not any(password in listed for _, password in rows)


def test_no_password_is_shown(tmp_path: Path) -> None:
    place = ["--data-dir", str(tmp_path)]
    answers = [
        typed("users", "add", "ann", *place, stdin="s3cret\n"),
        typed("users", "add", "ann", *place, stdin="s3cret\n"),
        typed("users", "list", *place),
        typed("users", "list", "--json", *place),
    ]
    assert not any("s3cret" in answer.stdout + answer.stderr for answer in answers)
    assert not any("argon2" in answer.stdout + answer.stderr for answer in answers)


def test_an_empty_password_is_refused(tmp_path: Path) -> None:
    answer = typed("users", "add", "ann", "--data-dir", str(tmp_path), stdin="\n")
    assert (answer.returncode, answer.stderr) == (1, "embermq: the password is empty\n")


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "users.db").write_bytes(b"x" * 4096)
    answer = typed("users", "list", "--data-dir", str(tmp_path))
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"embermq: cannot open {tmp_path}/users.db: file is not a database: ")
    assert "embermq restore" in answer.stderr


def test_reading_users_makes_no_directory(tmp_path: Path) -> None:
    answer = typed("users", "list", "--data-dir", str(tmp_path / "mistyped"))
    assert (answer.returncode, answer.stdout) == (1, "")
    assert (
        answer.stderr == f"embermq: there is no data directory {tmp_path}/mistyped; name it with --data-dir\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("second", "code", "told"),
    [
        ("s3cret", 0, "added ann (device)"),
        ("secret", 1, "embermq: the two passwords differ; nothing was changed"),
    ],
)
def test_a_terminal_is_asked_twice_and_shows_nothing(
    tmp_path: Path, second: str, code: int, told: str
) -> None:
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        [*EMBERMQ, "users", "add", "ann", "--data-dir", str(tmp_path)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    for prompt, answer in ((b"Password: ", "s3cret"), (b"The same again: ", second)):
        while not shown.endswith(prompt):
            shown += os.read(mine, 1)
        os.write(mine, answer.encode() + b"\n")
    while chunk := _read_to_end(mine):
        shown += chunk
    assert process.wait(TIMEOUT_S) == code
    os.close(mine)
    assert told in shown.decode()
    assert b"cret" not in shown


def _read_to_end(terminal: int) -> bytes:
    """Linux ends a terminal whose other side is closed with EIO."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


def test_a_reader_that_leaves_is_no_traceback() -> None:
    process = subprocess.Popen([*EMBERMQ, "check-config"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    shown = process.stderr.read()
    process.stderr.close()
    process.wait(TIMEOUT_S)
    assert b"Traceback" not in shown


@pytest.mark.parametrize(
    "words", [["run", "--help"], ["check-config"], ["users", "--help"], ["queues", "--help"]]
)
def test_a_command_loads_nothing_heavy(words: list[str]) -> None:
    program = (
        "import sys; from embermq.cli.main import main; main(sys.argv[1:]);"
        "heavy = {'pyspark', 'pandas', 'pyarrow', 'rich.console', 'pydantic', 'uvicorn', 'starlette', 'argon2'};"
        "heavy |= {'sqlalchemy', 'psycopg', 'pymysql', 'redis', 'grpc', 'google.protobuf'};"
        "heavy |= {'httpx', 'embermq.queues.queue'};"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.stderr == "[]\n"
