"""Who is banned, by what, and until when."""

from __future__ import annotations

import pytest

from embermq.access.bans import Ban, BanKind, Bans, address_banned

NOW = 1_000


def bans(*given: tuple[BanKind, str, int]) -> Bans:
    return Bans(Ban(kind, value, 0, until_ms) for kind, value, until_ms in given)


def test_each_kind_is_found_and_what_is_over_is_not() -> None:
    found = bans((BanKind.CLIENT_ID, "c", 0), (BanKind.USER, "ann", NOW + 1), (BanKind.USER, "bob", NOW))

    def is_banned(client_id: str = "", user: str = "", peer: str = "192.0.2.1:9", date_ms: int = NOW) -> bool:
        return found.find(client_id, user, peer, date_ms) is not None

    assert is_banned("c") and not is_banned("C") and not is_banned("ann")
    assert is_banned(user="ann") and not is_banned(user="ann", date_ms=NOW + 1)
    assert not is_banned(user="bob") and is_banned(user="bob", date_ms=0), "while the clock is not set"
    assert [ban.value for ban in found.all(NOW)] == ["c", "ann"]
    assert not Bans().find("c", "ann", "192.0.2.1:9", NOW)


@pytest.mark.parametrize(
    ("banned", "peer", "expected"),
    [
        ("192.0.2.1", "192.0.2.1:1883", True),
        ("192.0.2.1", "192.0.2.10:1883", False),
        ("192.0.2.77/24", "192.0.2.1:1883", True),
        ("192.0.2.0/24", "192.0.3.1:1883", False),
        ("192.0.2.1", "[::ffff:192.0.2.1]:1883", True),
        ("2001:DB8::0:1", "[2001:db8::1]:1", True),
        ("2001:db8::/32", "[2001:db8:5::1]:1", True),
        ("2001:db8::/32", "192.0.2.1:1", False),
        ("fe80::1", "[fe80::1%eth0]:1", True),
        ("::ffff:192.0.2.1", "192.0.2.1:1883", True),
        ("::ffff:192.0.2.0/120", "[::ffff:192.0.2.9]:1883", True),
        ("::ffff:192.0.2.0/120", "192.0.3.9:1883", False),
        ("10.0.0.0/8", "10.255.0.1:1", True),
        ("10.0.0.0/8", "/run/embermq.sock", False),
    ],
)
def test_addresses_and_networks(banned: str, peer: str, expected: bool) -> None:
    found = bans((BanKind.ADDRESS, address_banned(banned), 0))
    assert (found.find("", "", peer, NOW) is not None) is expected


def test_each_length_of_a_prefix_is_looked_at_and_one_that_is_over_hides_no_other() -> None:
    given = [(f"10.{number}.0.0/16", NOW) for number in range(256)]
    given += [("10.0.0.0/8", 0), ("10.7.0.0/24", NOW), ("2001:db8::/32", 0), ("192.0.2.4/31", 0)]
    found = bans(*((BanKind.ADDRESS, address_banned(value), until) for value, until in given))
    banned = found.find("", "", "10.7.0.1:5", NOW)
    assert banned is not None and banned.value == "10.0.0.0/8"
    assert found.find("", "", "192.0.2.5:5", NOW) and not found.find("", "", "192.0.2.6:5", NOW)
    assert found.find("", "", "[2001:db8:7::]:5", NOW) and not found.find("", "", "[2001:db9::]:5", NOW)
    assert len(found) == len(given)


@pytest.mark.parametrize("text", ["0.0.0.0/0", "128.0.0.0/1", "::/0", "2000::/3", "::ffff:0:0/96"])
def test_nobody_bans_half_of_the_world(text: str) -> None:
    with pytest.raises(ValueError, match="is the widest"):
        address_banned(text)


def test_an_address_has_no_zone() -> None:
    with pytest.raises(ValueError, match="without its zone"):
        address_banned("fe80::1%eth0")


@pytest.mark.parametrize("text", ["", "host", "192.0.2.256", "192.0.2.1/33"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="does not appear to be"):
        address_banned(text)


def test_what_is_new_is_what_the_others_have_not_or_for_another_time() -> None:
    before = bans((BanKind.USER, "ann", 0), (BanKind.USER, "bob", 0))
    after = bans((BanKind.USER, "bob", NOW), (BanKind.USER, "carl", 0))
    assert [ban.value for ban in after.not_in(before)] == ["bob", "carl"]
    assert not after.not_in(after)
