"""What is shown of a URL has no password, however badly it is written."""

from __future__ import annotations

import pytest

from embermq.ports.store_url import without_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite", "sqlite"),
        ("postgresql://ann:hidden@h:5432/d", "postgresql://ann:***@h:5432/d"),
        ("postgresql://ann@h/d", "postgresql://ann@h/d"),
        ("redis://:hidden@h/0", "redis://:***@h/0"),
        ("redis+cluster://u:hidden@a:1,b:2", "redis+cluster://u:***@a:1,b:2"),
        ("mysql://u:hid/den@h/d", "mysql://u:***@h/d"),
        ("mysql://u:hid@den@h/d", "mysql://u:***@h/d"),
        ("mysql://u:hid den\n@h/d", "mysql://u:***@h/d"),
        ("mysql://u@h/d?password=hidden&a=1", "mysql://u@h/d?password=***&a=1"),
        ("redis://u@h?password_file=/run/p&a=1", "redis://u@h?password_file=/run/p&a=1"),
        ("redis://u@h?password_file=/p&secret=hidden", "redis://u@h?password_file=/p&secret=***"),
        ("mysql://h:3306/d", "mysql://h:3306/d"),
        ("https://h/p?token=hidden&a=1", "https://h/p?token=***&a=1"),
        ("https://h/p?a=1&sig=hidden", "https://h/p?a=1&sig=***"),
        ("https://h/p?X-Amz-Credential=hidden&Auth=hidden", "https://h/p?X-Amz-Credential=***&Auth=***"),
        ("postgresql://ann@corp:hidden@h/d", "postgresql://ann@corp:***@h/d"),
        ("'mysql://u:hidden@h/d' is wrong", "'mysql://u:***@h/d' is wrong"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
