"""Refusals of what a file sets name the line, and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from embermq.app.config import load_configuration
from embermq.app.errors import ConfigError
from embermq.app.setting_value import SettingLines

TEXT = """\
data_dir = "/srv"   # [device]
mqtt.receive_maximum = 0

[ "device" ]
queue_limit = [
  1,
]
[listener."[::1]:1883"]
proxy_protocol = 7
path = '''
[device]
ttl_s = 5'''
[stores]
session = ["redis://u:geheim@host"]
[device2]  # nothing
websocket = { path = 3 }
"""


def test_lines_of_keys_and_tables() -> None:
    lines = SettingLines(TEXT)
    assert lines.line("data_dir") == 1
    assert lines.line("mqtt", "receive_maximum") == 2
    assert lines.line("device", "queue_limit") == 5
    assert lines.line("listener", "[::1]:1883", "proxy_protocol") == 9
    assert lines.line("listener", "[::1]:1883", "path") == 10
    assert lines.line("device", "ttl_s") == 4, "its own is inside a text"
    assert lines.line("device2", "websocket", "path") == 16
    assert lines.line("nowhere") == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[mqtt]\n\nreceive_maximum = 0",
            "mqtt.receive_maximum: 0 is less than the smallest allowed 1 (from {}, line 3)",
        ),
        ("[mqtt]\nqos = 9", "unknown setting mqtt.qos (from {}, line 2); the nearest is mqtt.max_qos"),
        ("\ndevice = 9", "device: is a section, written [device] (from {}, line 2)"),
        (
            '[listener."[::1]:1"]\nproxy_protocol = 7',
            'listener."[::1]:1".proxy_protocol: 7 is not true or false (from {}, line 2)',
        ),
        (
            '[stores]\nsession = ["redis://u:geheim@h"]',
            "stores.session: ['redis://u:***@h'] is not a text (from {}, line 2)",
        ),
        (
            "[listeners]\n\nmqtt = ['x']",
            "listeners.mqtt: 'x' is not host:port, for example 127.0.0.1:1883 or [::1]:1883 (from {}, line 3)",
        ),
        (
            "[log]\ndurability = 'no'",
            "log.durability: 'no' is not one of fsync, memory, os (from {}, line 2)",
        ),
    ],
)
def test_a_refusal_says_which_line_it_is_about(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "ember.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_configuration(config_file=path)
    assert refused.value.problems == (told.format(path),)


def test_where_a_value_comes_from_is_shown_without_the_line(tmp_path: Path) -> None:
    path = tmp_path / "ember.toml"
    path.write_text("[device]\nttl_s = 5")
    assert load_configuration(config_file=path).origins == {"device.ttl_s": str(path)}
