"""Who may enter a running broker: password files, changes of accounts, tokens, the HTTP hook, failures."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.hook_server import HookServer, said
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for, wait_until

from embermq.access.authentication.tokens import LEEWAY_S
from embermq.mqtt.wire.packets import Subscription, Will
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.process_cost import read_cpu

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
SUCCESS = ReasonCode.SUCCESS
WRONG = ReasonCode.BAD_USER_NAME_OR_PASSWORD
DENIED = ReasonCode.NOT_AUTHORIZED
SECRET = b"0123456789abcdef" * 4
KEY = ec.generate_private_key(ec.SECP256R1())
SOON_S = 60.0
"""About two seconds, on a machine that does other things as well."""


def users(data_dir: Path, *words: str, stdin: str = "", code: int = 0) -> str:
    done = run_program("users", words[0], "--data-dir", data_dir, *words[1:], stdin=stdin)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def mosquitto_file(path: Path, *accounts: tuple[str, str], hashes: str) -> Path:
    """As the mosquitto_passwd of this machine writes it."""
    for number, (name, password) in enumerate(accounts):
        create = [] if number else ["-c"]
        command = ["mosquitto_passwd", "-H", hashes, *create, "-b", str(path), name, password]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    return path


def hash_of(data_dir: Path, name: str) -> str:
    connection = sqlite3.connect(f"file:{data_dir / 'users.db'}?mode=ro", uri=True)
    try:
        found: tuple[str] = connection.execute(
            "SELECT password_hash FROM users WHERE name = ?", (name,)
        ).fetchone()
    finally:
        connection.close()
    return found[0]


async def entered(
    port: int,
    username: str | None,
    password: bytes | None,
    *,
    client_id: str = "c",
    version: ProtocolVersion = V5,
) -> int:
    """The answer's code."""
    client = MqttClient(client_id, version=version)
    answer = await client.connect(port, username=username, password=password)
    client.abort()
    await client.ended
    return answer.reason_code


@pytest.fixture
def data_dir(own_broker: BrokerProcess) -> Path:
    return own_broker.data_dir


@pytest.mark.parametrize("version", [V311, V5])
def test_on_a_fresh_broker_any_name_enters_until_there_is_an_account(
    own_broker: BrokerProcess, data_dir: Path, version: ProtocolVersion
) -> None:
    own_broker.start()
    port = own_broker.port
    topic = ["-t", "t", "-m", "x", "-q", "1", "-V", "5" if version is V5 else "311"]

    def published(*credentials: str) -> bool:
        command = ["mosquitto_pub", "-p", str(port), *credentials, *topic]
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0

    async def scenario() -> None:
        assert await entered(port, "ann", b"secret", version=version) == SUCCESS
        assert await entered(port, "ann", b"", version=version) == SUCCESS

    assert published("-u", "ann", "-P", "secret")
    assert published("-u", "bob")
    run(scenario())
    users(data_dir, "add", "ann", stdin="secret\n")
    assert not published("-u", "bob")
    assert not published("-u", "ann", "-P", "wrong")
    assert published("-u", "ann", "-P", "secret")
    assert published()
    users(data_dir, "remove", "ann")
    wait_until(lambda: published("-u", "bob"), SOON_S, "names are not believed any more")


@pytest.mark.parametrize("hashes", ["sha512", "sha512-pbkdf2"])
def test_users_of_mosquitto_keep_their_passwords(
    own_broker: BrokerProcess, data_dir: Path, tmp_path: Path, hashes: str
) -> None:
    file = mosquitto_file(tmp_path / "passwd", ("ann", "pässword"), ("bob", "b:$7$"), hashes=hashes)
    assert "would be added 2" in users(data_dir.parent, "import", str(file), "--dry-run")
    assert users(data_dir, "import", str(file)).endswith(": added 2, replaced 0, kept 0\n")
    assert hash_of(data_dir, "ann").startswith("$6$" if hashes == "sha512" else "$7$")
    own_broker.start()
    port = own_broker.port

    async def scenario() -> None:
        assert await entered(port, "ann", b"wrong") == WRONG
        assert hash_of(data_dir, "ann").startswith(("$6$", "$7$"))
        for _ in range(2):
            assert await entered(port, "ann", "pässword".encode()) == SUCCESS
            assert hash_of(data_dir, "ann").startswith("$argon2id$")
        assert await entered(port, "bob", b"b:$7$", version=V311) == SUCCESS
        assert await entered(port, "ann", b"wrong") == WRONG

    run(scenario())
    published = subprocess.run(
        ["mosquitto_pub", "-p", str(port), "-u", "ann", "-P", "pässword", "-t", "t", "-m", "x", "-q", "1"],
        capture_output=True,
        timeout=30,
    )
    assert published.returncode == 0, published.stderr


def test_an_import_is_all_or_nothing_and_replaces_when_asked(data_dir: Path, tmp_path: Path) -> None:
    file = mosquitto_file(tmp_path / "passwd", ("ann", "one"), ("bob", "two"), hashes="sha512-pbkdf2")
    users(data_dir, "add", "ann", stdin="mine\n")
    mine = hash_of(data_dir, "ann")
    done = json.loads(users(data_dir, "import", str(file), "--type", "application", "--json"))
    assert done == {"users": 2, "added": 1, "replaced": 0, "kept": 1, "dry_run": False}
    assert hash_of(data_dir, "ann") == mine
    done = json.loads(users(data_dir, "import", str(file), "--replace", "--json"))
    assert done == {"users": 2, "added": 0, "replaced": 2, "kept": 0, "dry_run": False}
    assert hash_of(data_dir, "ann").startswith("$7$")

    bad = tmp_path / "bad"
    bad.write_bytes(
        b"# users\n\neve:s3cret\nnothing\n" + file.read_bytes() + b"\xff:$6$a$b\nann:$6$YQ==$YQ==\n"
    )
    told = users(data_dir, "import", str(bad), code=1)
    assert "nothing was imported: line 3: has a password in plain text" in told
    for line in ("line 4: is not name:hash", "line 7: is not UTF-8", "line 8: the hash has a salt of 1"):
        assert line in told
    assert "s3cret" not in told
    assert "nothing\n" not in told
    assert "No such file" in users(data_dir, "import", str(tmp_path / "nowhere"), code=1)


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize(
    ("words", "stdin", "code"),
    [
        (["disable", "ann"], "", DENIED),
        (["remove", "ann"], "", WRONG),
        (["password", "ann"], "other\n", WRONG),
    ],
)
def test_a_changed_account_ends_what_it_opened(
    own_broker: BrokerProcess,
    data_dir: Path,
    *,
    version: ProtocolVersion,
    words: list[str],
    stdin: str,
    code: ReasonCode,
) -> None:
    for name in ("ann", "bob"):
        users(data_dir, "add", name, stdin="secret\n")
    own_broker.start()
    port = own_broker.port

    async def scenario() -> None:
        ann, bob, nobody = (MqttClient(name, version=version) for name in ("a", "b", "n"))
        await ann.connect(port, username="ann", password=b"secret", will=Will("will/ann", b"gone", 1, False))
        await bob.connect(port, username="bob", password=b"secret")
        await bob.subscribe(Subscription("will/#", 1))
        await nobody.connect(port)
        await asyncio.to_thread(users, data_dir, *words, stdin=stdin)
        await asyncio.wait_for(ann.ended, SOON_S)
        if version is V5:
            assert ann.disconnect_received is not None
            assert ann.disconnect_received.reason_code == DENIED
        await wait_for(lambda: [message.payload for message in bob.messages] == [b"gone"], what="the will")
        expected = code if version is V5 else {WRONG: 4, DENIED: 5}[code]
        assert await entered(port, "ann", b"secret", version=version) == expected
        for client in (bob, nobody):
            await client.ping()

    run(scenario())


def test_an_account_that_is_enabled_again_or_has_its_new_password_enters(
    own_broker: BrokerProcess, data_dir: Path
) -> None:
    users(data_dir, "add", "ann", stdin="secret\n")
    users(data_dir, "disable", "ann")
    users(data_dir, "enable", "ann")
    users(data_dir, "password", "ann", stdin="other\n")
    assert "there is no user 'bob'" in users(data_dir, "password", "bob", stdin="other\n", code=1)
    assert "there is no user 'bob'" in users(data_dir, "disable", "bob", code=1)
    own_broker.start()

    async def scenario() -> None:
        client = MqttClient("a")
        await client.connect(own_broker.port, username="ann", password=b"other")
        await asyncio.to_thread(users, data_dir, "add", "eve", stdin="secret\n")
        await asyncio.to_thread(users, data_dir, "enable", "ann")
        assert await entered(own_broker.port, "eve", b"secret") == SUCCESS
        await client.ping()

    run(scenario())


def test_who_comes_again_costs_little_until_the_account_changes(
    own_broker: BrokerProcess, data_dir: Path
) -> None:
    """A chosen password costs its slow hash once, a generated one never. The command line is another process."""
    users(data_dir, "add", "ann", stdin="secret\n")
    made = users(data_dir, "add", "--generate", "pump-1", "pump-2").splitlines()
    generated = dict(line.split("\t") for line in made)
    assert list(generated) == ["pump-1", "pump-2"]
    own_broker.start()
    port, pid = own_broker.port, own_broker.pid

    async def cost_s(username: str, password: bytes, expected: ReasonCode, times: int) -> float:
        """CPU time of the broker for one of so many logins."""
        before_s = read_cpu(pid, children=False).own_s
        for _ in range(times):
            assert await entered(port, username, password) == expected
        return (read_cpu(pid, children=False).own_s - before_s) / times

    async def scenario() -> None:
        pump = generated["pump-1"].encode()
        slow_s = await cost_s("ann", b"wrong", WRONG, 4)
        assert await entered(port, "ann", b"secret") == SUCCESS
        assert await cost_s("ann", b"secret", SUCCESS, 100) < slow_s / 5
        assert await cost_s("pump-1", pump, SUCCESS, 100) < slow_s / 5
        assert await entered(port, "pump-2", pump) == WRONG
        await asyncio.to_thread(users, data_dir, "password", "ann", stdin="other\n")
        again = (await asyncio.to_thread(users, data_dir, "password", "--generate", "pump-1")).split("\t")[1]
        assert await entered(port, "ann", b"secret") == WRONG
        assert await entered(port, "pump-1", pump) == WRONG
        assert await entered(port, "ann", b"other") == SUCCESS
        assert await entered(port, "pump-1", again.strip().encode()) == SUCCESS
        await asyncio.to_thread(users, data_dir, "disable", "ann")
        assert await entered(port, "ann", b"other") == DENIED

    run(scenario())
    assert not any(password in own_broker.output() for password in generated.values())


def token(**claims: object) -> bytes:
    return jwt.encode({"sub": "pump-7", "exp": int(time.time()) + 600, **claims}, SECRET, "HS256").encode()


def with_tokens(broker: BrokerProcess, tmp_path: Path, **settings: object) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    broker.settings |= {
        "authentication.chain": "jwt,password",
        "jwt.hmac_secret_file": tmp_path / "secret",
        "jwt.public_key_files": tmp_path / "public.pem",
        **settings,
    }


@pytest.mark.parametrize("version", [V311, V5])
def test_a_token_lets_in_until_it_ends(
    own_broker: BrokerProcess, tmp_path: Path, version: ProtocolVersion
) -> None:
    with_tokens(own_broker, tmp_path, **{"jwt.client_id_claim": "client_id"})
    own_broker.start()
    port = own_broker.port

    async def scenario() -> None:
        lasting, ending = MqttClient("l", version=version), MqttClient("e", version=version)
        ends_s = int(time.time()) + 3 - LEEWAY_S
        answer = await lasting.connect(port, username="x", password=token(client_id="l"))
        assert answer.reason_code == SUCCESS
        await ending.connect(port, username="x", password=token(client_id="e", exp=ends_s))
        await asyncio.wait_for(ending.ended, SOON_S)
        assert time.time() >= ends_s + LEEWAY_S
        if version is V5:
            assert ending.disconnect_received is not None
            assert ending.disconnect_received.reason_code == DENIED
        await lasting.ping()
        refused = WRONG if version is V5 else 4
        for password in (token(client_id="e", exp=ends_s), token(client_id="other"), token()):
            assert await entered(port, "x", password, client_id="e", version=version) == refused
        signed = jwt.encode(
            {"sub": "p", "exp": ends_s + 600 + LEEWAY_S, "client_id": "c"}, KEY, "ES256"
        ).encode()
        assert await entered(port, "x", signed, version=version) == SUCCESS

    run(scenario())
    words = ["-i", "m", "-u", "x", "-P", token(client_id="m").decode(), "-t", "t", "-m", "x", "-q", "1"]
    published = subprocess.run(
        ["mosquitto_pub", "-p", str(port), *words],
        capture_output=True,
        timeout=30,
    )
    assert published.returncode == 0, published.stderr


def test_a_disabled_account_is_closed_to_tokens_of_its_name(
    own_broker: BrokerProcess, tmp_path: Path
) -> None:
    with_tokens(own_broker, tmp_path)
    users(own_broker.data_dir, "add", "pump-7", stdin="secret\n")
    own_broker.start()

    async def scenario() -> None:
        client = MqttClient("a")
        await client.connect(own_broker.port, username="x", password=token())
        await asyncio.to_thread(users, own_broker.data_dir, "disable", "pump-7")
        await asyncio.wait_for(client.ended, SOON_S)
        assert await entered(own_broker.port, "x", token()) == DENIED

    run(scenario())


@pytest.mark.parametrize(
    ("settings", "code", "told"),
    [
        (
            {"authentication.chain": "jwt", "jwt.public_key_files": "nowhere"},
            1,
            "embermq: jwt.public_key_files: cannot read nowhere: No such file or directory",
        ),
        (
            {"authentication.chain": "jwt"},
            2,
            "embermq: authentication.chain: 'jwt' needs jwt.hmac_secret_file",
        ),
        ({"authentication.chain": "passwort"}, 2, "the nearest is password"),
        (
            {
                "authentication.chain": "http",
                "http_hook.url": "https://127.0.0.1:1/",
                "http_hook.ca_file": "nowhere",
            },
            1,
            "embermq: http_hook.ca_file: cannot read nowhere",
        ),
    ],
)
def test_a_chain_that_cannot_be_keeps_the_broker_from_starting(
    own_broker: BrokerProcess, settings: dict[str, object], code: int, told: str
) -> None:
    own_broker.settings |= settings
    own_broker.launch()
    assert own_broker.wait() == code
    assert told in own_broker.output()


@pytest.fixture
def hook() -> Iterator[HookServer]:
    def answer(asked: dict[str, object]) -> tuple[int, bytes]:
        known = {
            "ann": said("allow"),
            "app": said("allow", client_type="application"),
            "eve": said("deny"),
            "short": said("allow", expires_at=time.time() + 2),
        }
        return known.get(str(asked["username"]), said("ignore"))

    with HookServer(answer) as server:
        yield server


def test_the_hook_is_asked_in_its_place(own_broker: BrokerProcess, hook: HookServer) -> None:
    own_broker.settings |= {
        "authentication.chain": "password,http,anonymous",
        "http_hook.url": hook.url,
        "http_hook.timeout_ms": 500,
    }
    users(own_broker.data_dir, "add", "local", stdin="secret\n")
    own_broker.start()
    port = own_broker.port

    async def scenario() -> None:
        assert await entered(port, "local", b"secret") == SUCCESS
        assert await entered(port, "local", b"wrong") == WRONG
        assert hook.asked == []
        assert await entered(port, "ann", b"any") == SUCCESS
        assert await entered(port, "ann", b"any") == SUCCESS
        assert len(hook.asked) == 1
        assert hook.asked[0]["address"] == "127.0.0.1"
        assert await entered(port, "eve", b"any", version=V311) == 4
        assert await entered(port, "unknown", b"any") == WRONG
        assert await entered(port, None, None) == SUCCESS
        short = MqttClient("s")
        assert (await short.connect(port, username="short", password=b"any")).reason_code == SUCCESS
        await asyncio.wait_for(short.ended, SOON_S)
        hook.free.clear()
        assert await entered(port, "ann", b"other") == ReasonCode.SERVER_UNAVAILABLE
        hook.free.set()

    run(scenario())
    assert "the HTTP hook gives no usable answer: no answer within 500 ms" in own_broker.output()


def test_failures_are_late_and_successes_are_not(own_broker: BrokerProcess, data_dir: Path) -> None:
    own_broker.constants["embermq.app.authentication.FAILURES_FREE"] = 2
    users(data_dir, "add", "ann", stdin="secret\n")
    own_broker.start()
    port = own_broker.port

    async def scenario() -> None:
        for late_s in (0, 0, 0.25, 0.5, 1.0):
            began = time.monotonic()
            assert await entered(port, "ann", b"wrong") == WRONG
            assert time.monotonic() - began >= late_s
        began = time.monotonic()
        failing = asyncio.create_task(entered(port, "nobody", b"wrong"))
        for _ in range(3):
            assert await entered(port, "ann", b"secret") == SUCCESS
        assert not failing.done() or time.monotonic() - began >= 2.0
        assert await failing == WRONG

    run(scenario())
    counts = metrics(own_broker)
    assert "embermq_logins_failed_total 6.0" in counts
    assert "embermq_login_answers_delayed_total 4.0" in counts


def metrics(broker: BrokerProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def test_nothing_secret_is_told(own_broker: BrokerProcess, tmp_path: Path, hook: HookServer) -> None:
    """Every step, right and wrong, with the log at its most talkative."""
    with_tokens(own_broker, tmp_path)
    own_broker.settings |= {
        "authentication.chain": "jwt,password,scram,http,anonymous",
        "http_hook.url": hook.url,
        "logging.level": "debug",
    }
    own_broker.constants["embermq.app.authentication.FAILURES_FREE"] = 100
    data_dir = own_broker.data_dir
    file = mosquitto_file(tmp_path / "passwd", ("imported", "pass-imported"), hashes="sha512-pbkdf2")
    imported = file.read_text().strip().rpartition("$")[2]
    users(data_dir, "import", str(file))
    users(data_dir, "add", "--scram", "own", stdin="pass-own\n")
    own_broker.start()
    port = own_broker.port
    right, wrong = token(), token(exp=1_000)
    passwords = [b"pass-own", b"pass-imported", b"pass-hook", b"pass-wrong", right, wrong]

    async def scenario() -> None:
        for username in ("own", "imported", "ann", "eve", "unknown", None):
            for number, password in enumerate(passwords):
                await entered(port, username, password, client_id=f"c{number}")
        hook.free.clear()
        assert await entered(port, "late", b"pass-late") == ReasonCode.SERVER_UNAVAILABLE

    run(scenario())
    output = own_broker.output_from(0).decode(errors="replace") + metrics(own_broker)
    assert "its token is refused: it has expired" in output
    assert "wrong password, or no such account" in output
    assert "the HTTP hook refuses it" in output
    secrets = [*passwords, b"pass-late", SECRET, imported.encode(), hash_of(data_dir, "own").encode()]
    for secret in secrets:
        assert secret.decode() not in output
    for signature in (right, wrong):
        assert signature.decode().rpartition(".")[2] not in output
    assert "argon2" not in output


def test_libraries_come_with_their_steps(own_broker: BrokerProcess, tmp_path: Path) -> None:
    """What tokens and the hook need is in memory only where they are used."""

    def has_cryptography() -> bool:
        return "cryptography" in Path(f"/proc/{own_broker.pid}/maps").read_text()

    own_broker.start()
    run(_enter_once(own_broker.port))
    assert not has_cryptography()
    with_tokens(own_broker, tmp_path)
    own_broker.restart()
    assert has_cryptography()


async def _enter_once(port: int) -> None:
    await entered(port, "nobody", b"wrong")
