from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from embermq.app.errors import IsThere, UserError
from embermq.tools.mosquitto.conf import read_conf
from embermq.tools.mosquitto.importing import ImportedConf, LineFate, carry, import_conf, toml_lines


def imported(
    tmp_path: Path, text: str
) -> tuple[dict[str, Any], dict[str, tuple[LineFate, str]], ImportedConf]:
    """The configuration that was written, and what became of each line, by the line."""
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(text)
    found = import_conf(conf, tmp_path / "embermq.toml", data_dir=str(tmp_path / "data"), replace=True)
    written = tomllib.loads((tmp_path / "embermq.toml").read_text())
    fates = {f"{one.name} {one.value}".strip(): (one.fate, one.text) for one in found.outcomes}
    return written, fates, found


def test_without_a_listener_it_is_this_machine_alone(tmp_path: Path) -> None:
    conf = tmp_path / "mosquitto.conf"
    conf.write_text("# nothing\n\npid_file /run/x\n")
    found = carry(read_conf(conf), has_ipv6=True)
    assert found.listeners["mqtt"] == ["127.0.0.1:1883", "[::1]:1883"]
    assert all(table == {"allow_anonymous": True} for table in found.tables.values())
    assert carry(read_conf(conf), has_ipv6=False).listeners["mqtt"] == ["127.0.0.1:1883"]


@pytest.mark.parametrize(
    ("text", "listeners"),
    [
        ("listener 1883", {"mqtt": ["0.0.0.0:1883", "[::]:1883"]}),
        ("listener 1883 ::1", {"mqtt": ["[::1]:1883"]}),
        ("listener 1883\nsocket_domain ipv4", {"mqtt": ["0.0.0.0:1883"]}),
        ("listener 0 /run/m.sock", {"mqtt": ["unix:/run/m.sock"]}),
        ("port 1884\nbind_address 10.0.0.1", {"mqtt": ["10.0.0.1:1884"]}),
        ("bind_address 10.0.0.1", {"mqtt": ["10.0.0.1:1883"]}),
        ("listener 9001 h\nprotocol websockets", {"ws": ["h:9001"]}),
        ("listener 9001 h\nprotocol websockets\ncertfile /c", {"wss": ["h:9001"]}),
        ("listener 8883 h\ncertfile /c\nkeyfile /k", {"mqtts": ["h:8883"]}),
        ("max_qos 1\nlistener 8883 h", {"mqtt": ["0.0.0.0:1883", "[::]:1883", "h:8883"]}),
    ],
)
def test_listeners(tmp_path: Path, text: str, listeners: dict[str, list[str]]) -> None:
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(text)
    found = carry(read_conf(conf)).listeners
    assert {kind: addresses for kind, addresses in found.items() if addresses} == listeners


@pytest.mark.parametrize(
    "line",
    [
        "mount_point a/",
        "bind_interface eth0",
        "psk_hint x",
        "protocol http_api",
        "certfile /c\nrequire_certificate true",
    ],
)
def test_a_listener_that_would_let_more_in_is_not_opened(tmp_path: Path, line: str) -> None:
    written, fates, found = imported(tmp_path, f"listener 1883 127.0.0.1\nlistener 1884\n{line}\n")
    assert written["listeners"] == {"mqtt": ["127.0.0.1:1883"]}
    fate, text = fates["listener 1884"]
    assert fate is LineFate.LEFT and "not opened" in text
    assert not found.is_whole


def test_a_listener_accepts_nobody_without_a_name_unless_it_says_so(tmp_path: Path) -> None:
    listeners = "listener 1883 127.0.0.1\nlistener 1884 127.0.0.1\n"
    written, _, _ = imported(tmp_path, listeners)
    assert [table["allow_anonymous"] for table in written["listener"].values()] == [False, False]
    written, _, _ = imported(tmp_path, listeners + "allow_anonymous true\n")
    assert [table["allow_anonymous"] for table in written["listener"].values()] == [True, True]
    written, _, _ = imported(tmp_path, "per_listener_settings true\n" + listeners + "allow_anonymous true\n")
    assert [table["allow_anonymous"] for table in written["listener"].values()] == [False, True]


@pytest.mark.parametrize(
    ("line", "section", "key", "value"),
    [
        ("max_inflight_messages 20", "mqtt", "inflight_max", 20),
        ("max_inflight_messages 0", "mqtt", "inflight_max", 65_535),
        ("max_queued_messages 500", "device", "queue_limit", 500),
        ("max_queued_bytes 5000000", "device", "queue_bytes_max", 5_000_000),
        ("message_size_limit 1000", "mqtt", "payload_bytes_max", 1_000),
        ("max_packet_size 100000", "mqtt", "packet_bytes_max", 100_000),
        ("max_keepalive 600", "mqtt", "keep_alive_max_s", 600),
        ("persistent_client_expiration 2d", "mqtt", "session_expiry_max_s", 172_800),
        ("persistent_client_expiration 1y", "mqtt", "session_expiry_max_s", 31_536_000),
        ("retain_available false", "mqtt", "unavailable", ["retain"]),
        ("retain_available true", "mqtt", "unavailable", []),
        ("sys_interval 3", "mqtt", "sys_interval_s", 3),
        ("global_max_connections -1", "clients", "connections_max", 0),
        ("use_username_as_clientid true", "clients", "username_as_client_id", True),
        ("log_type debug", "logging", "level", "debug"),
    ],
)
def test_settings_of_the_broker(tmp_path: Path, line: str, section: str, key: str, value: object) -> None:
    written, fates, _ = imported(tmp_path, f"listener 1883 127.0.0.1\n{line}\n")
    assert written[section][key] == value
    assert fates[line][0] is not LineFate.LEFT


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("max_connections 7", "connections_max", 7),
        ("max_qos 1", "max_qos", 1),
        ("allow_zero_length_clientid false", "allow_empty_client_id", False),
        ("accept_protocol_versions 4,5", "protocol_versions", ["3.1.1", "5.0"]),
    ],
)
def test_settings_of_a_listener(tmp_path: Path, line: str, key: str, value: object) -> None:
    written, fates, _ = imported(
        tmp_path, f"listener 1883 127.0.0.1\n{line}\nlistener 1884 127.0.0.1\nmax_connections -1"
    )
    assert written["listener"]["127.0.0.1:1883"][key] == value
    assert fates[line][0] is LineFate.CARRIED
    assert "connections_max" not in written["listener"]["127.0.0.1:1884"]


@pytest.mark.parametrize(
    ("lines", "identity"),
    [
        ("use_identity_as_username true", "cn"),
        ("use_subject_as_username true", "subject"),
        ("", "off"),
    ],
)
def test_certificates(tmp_path: Path, lines: str, identity: str) -> None:
    written, fates, _ = imported(
        tmp_path,
        "listener 8883 127.0.0.1\ncafile /ca\ncertfile /c\nkeyfile /k\ncrlfile /crl\n"
        f"require_certificate true\n{lines}\n",
    )
    table = written["listener"]["127.0.0.1:8883"]
    assert [table[key] for key in ("ca", "cert", "key", "crl")] == ["/ca", "/c", "/k", "/crl"]
    assert (table["client_certificates"], table["identity"]) == ("required", identity)
    assert fates["certfile /c"] == (LineFate.DIFFERS, "/c cannot be read now; a start of the broker needs it")


def test_certificates_of_clients_that_were_not_asked_for_are_not_asked_for(tmp_path: Path) -> None:
    written, fates, _ = imported(
        tmp_path, "listener 8883 127.0.0.1\ncafile /ca\ncertfile /c\nuse_identity_as_username true\n"
    )
    assert written["listener"]["127.0.0.1:8883"] == {"allow_anonymous": False, "cert": "/c"}
    assert fates["use_identity_as_username true"][0] is LineFate.LEFT


def test_files_of_passwords_that_differ_are_not_put_together(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"{name}:$7$101$c2FsdHNhbHQ=$aGFzaA==\n")
    text = (
        "per_listener_settings true\n"
        f"listener 1883 127.0.0.1\npassword_file {tmp_path}/one\n"
        f"listener 1884 127.0.0.1\npassword_file {tmp_path}/two\n"
    )
    _, fates, found = imported(tmp_path, text)
    assert found.users is None and not found.is_whole
    assert (
        fates[f"password_file {tmp_path}/one"][0]
        is fates[f"password_file {tmp_path}/two"][0]
        is LineFate.LEFT
    )


@pytest.mark.parametrize("why", ["different", "plugin", "plugin beside", "broken"])
def test_rights_that_cannot_be_taken_over_are_nobodys(tmp_path: Path, why: str) -> None:
    (tmp_path / "one").write_text("topic a\n" if why != "broken" else "topic a\nsubject b\n")
    (tmp_path / "two").write_text("topic b\n")
    second = {
        "different": f"acl_file {tmp_path}/two",
        "plugin": "plugin /usr/lib/p.so\nplugin_opt_secret hush",
        "plugin beside": f"plugin /usr/lib/p.so\nacl_file {tmp_path}/one",
        "broken": f"acl_file {tmp_path}/one",
    }[why]
    first = f"acl_file {tmp_path}/one" if why == "different" else "max_qos 2"
    text = (
        f"per_listener_settings true\nlistener 1883 127.0.0.1\n{first}\nlistener 1884 127.0.0.1\n{second}\n"
    )
    written, fates, found = imported(tmp_path, text)
    closed = Path(written["authorization"]["mosquitto_acl"])
    assert closed == tmp_path / "embermq-closed.acl" and found.shut in closed.read_text()
    assert not [line for line in closed.read_text().splitlines() if not line.startswith("#")]
    assert not found.is_whole
    assert "hush" not in str(fates) + str(found.outcomes)


def test_prefixes_of_client_ids_are_for_the_operator_to_look_at(tmp_path: Path) -> None:
    _, _, found = imported(tmp_path, "listener 1883 127.0.0.1\nclientid_prefixes car-\n")
    assert not found.is_whole


def test_one_acl_of_several_listeners_holds_for_all(tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("topic a\n")
    written, fates, found = imported(
        tmp_path,
        f"per_listener_settings true\nlistener 1883 127.0.0.1\nacl_file {tmp_path}/acl\nlistener 1884 127.0.0.1\n",
    )
    assert written["authorization"]["mosquitto_acl"] == f"{tmp_path}/acl" and found.is_whole
    assert fates[f"acl_file {tmp_path}/acl"] == (
        LineFate.DIFFERS,
        "authorization.mosquitto_acl, on every listener",
    )


def test_bridges_are_told_without_their_passwords(tmp_path: Path) -> None:
    _, fates, found = imported(
        tmp_path,
        "connection cloud\naddress b.example\nremote_password hush\npassword hush\nbridge_psk hush\ntopic # both 0\n",
    )
    assert {fate for fate, _ in fates.values()} == {LineFate.LEFT}
    assert "hush" not in str(found) and "topic # both 0" in fates


def test_what_a_setting_makes_impossible_is_left(tmp_path: Path) -> None:
    written, fates, _ = imported(tmp_path, "max_queued_bytes 2000\nmax_packet_size 100000\n")
    assert written["mqtt"]["packet_bytes_max"] == 100_000
    assert fates["max_queued_bytes 2000"][1].startswith(
        "device.queue_bytes_max: 2000 is less than one message may have"
    )


def test_included_files_begin_with_the_default_listener(tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "b.conf").write_text("listener 1885 127.0.0.1\nmax_qos 0\n")
    (folder / "B.conf").write_text("max_keepalive 99\ninclude_dir /not/read\n")
    (folder / "a.txt").write_text("listener 1886\n")
    (tmp_path / "mosquitto.conf").write_text(f"listener 1884 127.0.0.1\ninclude_dir {folder}\nmax_qos 1\n")
    lines = read_conf(tmp_path / "mosquitto.conf")
    assert [line.place.rpartition("/")[2] for line in lines] == [
        "mosquitto.conf:1",
        "mosquitto.conf:2",
        "B.conf:1",
        "B.conf:2",
        "b.conf:1",
        "b.conf:2",
        "mosquitto.conf:3",
    ]
    tables = tomllib.loads("\n".join(toml_lines(carry(lines))))["listener"]
    assert (tables["127.0.0.1:1884"]["max_qos"], tables["127.0.0.1:1885"]["max_qos"]) == (1, 0)


def test_what_cannot_be_read_is_told_with_its_line(tmp_path: Path) -> None:
    conf = tmp_path / "mosquitto.conf"
    with pytest.raises(UserError, match=r"cannot read .*mosquitto.conf: No such file"):
        read_conf(conf)
    conf.write_bytes(b"port 1883\nuser \xff\n")
    with pytest.raises(UserError, match=r"mosquitto.conf:2: is not UTF-8"):
        read_conf(conf)
    conf.write_text("include_dir /not/there\n")
    with pytest.raises(UserError, match=r"mosquitto.conf:1: cannot read the folder /not/there"):
        read_conf(conf)


def test_a_configuration_that_is_there_stays(tmp_path: Path) -> None:
    conf, output = tmp_path / "mosquitto.conf", tmp_path / "embermq.toml"
    conf.write_text("port 1883\n")
    output.write_text("# mine\n")
    with pytest.raises(IsThere):
        import_conf(conf, output, data_dir=None)
    assert "listeners" in import_conf(conf, output, data_dir=None, dry_run=True).text
    assert output.read_text() == "# mine\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["embermq.toml", "mosquitto.conf"]
