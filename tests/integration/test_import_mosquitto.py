"""`embermq import`: a broker on the configuration that it writes lets in and hands on what Mosquitto did."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.test_mosquitto_acl import MOSQUITTO, listens
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.certificates import Authority
from tests.support.forked_program import run_program
from tests.support.waiting import wait_until

from embermq.tools.mosquitto.conf import ConfLine, reason
from embermq.tools.mosquitto.importing import carry

EXAMPLES = Path("/usr/share/doc/mosquitto/examples")
SETTING = re.compile(r"#?([a-z][a-z_0-9.]+)(?: [^ ]|$)")
WORDS = {
    *(
        "listener",
        "port",
        "protocol",
        "user",
        "persistence",
        "connection",
        "address",
        "topic",
        "username",
        "password",
    ),
    *(
        "cafile",
        "capath",
        "certfile",
        "keyfile",
        "crlfile",
        "ciphers",
        "ciphers_tls1.3",
        "plugin",
        "cleansession",
    ),
    *("clientid", "notifications", "threshold"),
}
"""Settings without _, which words of the pages do not show by themselves."""
PAGE_ITEM = re.compile(r"^\\fB([a-z][a-z0-9_.]+)\\fR")
ACL = """topic read public/#
user ann
topic ann/#
topic readwrite public/#
topic deny ann/secret
pattern write from/%u
user pump-7
topic readwrite public/#
"""


class Place:
    """A mosquitto.conf with two listeners, accounts, an ACL and certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plain, self.tls = free_port(), free_port()
        authority = Authority(folder / "certs")
        self.authority = authority.certificate
        self.server, self.client = authority.server(), authority.client()
        (folder / "acl").write_text(ACL)
        (folder / "acl").chmod(0o644)
        passwords = folder / "passwords"
        subprocess.run(["mosquitto_passwd", "-b", "-c", passwords, "ann", "first"], check=True)
        subprocess.run(["mosquitto_passwd", "-b", passwords, "bob", "second"], check=True)
        (folder / "conf.d").mkdir()
        self.conf = folder / "mosquitto.conf"
        self.conf.write_text(
            f"user root\npersistence false\nlog_type error\nmax_inflight_messages 30\ninclude_dir {folder}/conf.d\n"
        )
        (folder / "conf.d" / "listeners.conf").write_text(
            f"password_file {passwords}\nacl_file {folder}/acl\nallow_anonymous false\n"
            f"listener {self.plain} 127.0.0.1\nmax_qos 1\n"
            f"listener {self.tls} 127.0.0.1\ncafile {self.authority}\ncertfile {self.server}\nkeyfile {self.server}\n"
            "require_certificate true\nuse_identity_as_username true\n"
        )

    def publish(self, *words: str | Path) -> str:
        """Whether a client enters, and whether it may publish."""
        said = ["mosquitto_pub", "-V", "5", "-q", "1", "-m", "x", *words]
        done = subprocess.run(said, capture_output=True, text=True, timeout=60)
        return "kept out" if done.returncode else "denied" if "Not authorized" in done.stderr else "taken"

    def outcome(self) -> list[str]:
        """What each of these clients gets."""
        plain = ("-p", str(self.plain))
        tls = ("-h", "localhost", "-p", str(self.tls), "--cafile", self.authority)
        named = ("--cert", self.client, "--key", self.client)
        return [
            self.publish(*plain, "-t", "public/a"),
            self.publish(*plain, "-t", "public/a", "-u", "ann", "-P", "wrong"),
            self.publish(*plain, "-t", "public/a", "-u", "eve", "-P", "first"),
            self.publish(*plain, "-t", "public/a", "-u", "ann", "-P", "first"),
            self.publish(*plain, "-t", "ann/secret", "-u", "ann", "-P", "first"),
            self.publish(*plain, "-t", "ann/other", "-u", "ann", "-P", "first"),
            self.publish(*plain, "-t", "ann/other", "-u", "bob", "-P", "second"),
            self.publish(*plain, "-t", "from/bob", "-u", "bob", "-P", "second"),
            self.publish(*tls, "-t", "public/a"),
            self.publish(*tls, *named, "-t", "public/a"),
            self.publish(*tls, *named, "-t", "ann/other"),
        ]


@contextmanager
def mosquitto(conf: Path, port: int) -> Iterator[None]:
    with subprocess.Popen([MOSQUITTO, "-c", str(conf)]) as process:
        try:
            wait_until(lambda: listens(port), what="Mosquitto")
            yield
        finally:
            process.terminate()


def test_the_same_clients_enter_and_may_do_the_same(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with mosquitto(place.conf, place.tls):
        there = place.outcome()
    assert there == [
        *("kept out", "kept out", "kept out", "taken", "denied", "taken", "denied", "taken"),
        *("kept out", "taken", "denied"),
    ]
    data, config = tmp_path / "data", tmp_path / "embermq.toml"
    words = ("import", place.conf, "--output", config, "--data-dir", data)
    tried = run_program(*words, "--dry-run")
    assert "accounts: 2 in the file, would be added 2, kept 0" in tried.stdout
    assert not data.exists() and not config.exists()
    done = run_program(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accounts: 2 in the file, added 2, kept 0" in done.stdout
    again = run_program(*words, "--dry-run")
    assert "would be added 0, kept 2" in again.stdout
    assert "persistence false" in done.stdout
    broker = BrokerProcess(data, arguments=["--config", str(config)])
    broker.settings = {"listeners.mqtt": f"127.0.0.1:{place.plain}"}
    with broker:
        assert place.outcome() == there


def test_every_setting_that_mosquitto_documents_is_carried_or_has_a_reason() -> None:
    """Those of the example, which has most as comments, and of the manual page."""
    example = (EXAMPLES / "mosquitto.conf").read_text().splitlines()
    names = {found[1] for line in example if (found := SETTING.match(line))}
    page = gzip.decompress(Path("/usr/share/man/man5/mosquitto.conf.5.gz").read_bytes()).decode()
    names |= {found[1] for line in page.splitlines() if (found := PAGE_ITEM.match(line))}
    names = {name for name in names if "_" in name and not name.startswith("mosquitto_")} | WORDS
    assert len(names) > 90
    unknown = "is not known here, nor to Mosquitto 2.0"
    assert reason("no_such_setting") == unknown
    for name in sorted(names):
        carried = carry([ConfLine("f:1", name, "1", 0)])
        assert carried.outcomes[0].text != unknown, name


@pytest.mark.parametrize("conf", [EXAMPLES / "mosquitto.conf", Path("/etc/mosquitto/mosquitto.conf")])
def test_files_of_debian(tmp_path: Path, conf: Path) -> None:
    """They run on the same addresses: this machine's."""
    output = tmp_path / "embermq.toml"
    done = run_program("import", conf, "--output", output, "--data-dir", tmp_path / "data")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Start it with: embermq run --config {output}" in done.stdout
    assert '"127.0.0.1:1883"' in output.read_text()
    checked = run_program("check-config", "--config", output, "--no-pipeline")
    assert checked.returncode == 0, checked.stderr


def test_retained_messages_are_published_again_as_the_page_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "from-mosquitto.md").read_text()
    (command,) = re.findall(r"```\n(mosquitto_sub .*?)```", page, re.DOTALL)
    old = free_port()
    (tmp_path / "mosquitto.conf").write_text(
        f"listener {old} 127.0.0.1\nallow_anonymous true\nuser root\nlog_type error\n"
    )
    with mosquitto(tmp_path / "mosquitto.conf", old), BrokerProcess(tmp_path / "data") as broker:
        for topic, body in {"a/b c": b"\0\xff x", "d": b"plain"}.items():
            told = ["mosquitto_pub", "-p", str(old), "-t", topic, "-r", "-q", "1", "-s"]
            subprocess.run(told, input=body, check=True, timeout=60)
        typed = command.replace("-h old", f"-p {old}").replace("-h new", f"-p {broker.port}")
        process = subprocess.Popen(["bash", "-euo", "pipefail", "-c", typed], start_new_session=True)
        try:
            process.wait(60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        asked = [
            "mosquitto_sub",
            "-p",
            str(broker.port),
            "-t",
            "#",
            "--retained-only",
            "-C",
            "2",
            "-W",
            "60",
            "-F",
            "%t %x",
        ]
        shown = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=90)
        assert sorted(shown.stdout.splitlines()) == ["a/b c 00ff2078", "d 706c61696e"]
