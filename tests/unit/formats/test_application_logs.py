"""Names of application logs: those that are promised, those that would collide, and that nothing shares a name."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embermq.formats.application_logs import PREFIX_CHARACTERS_MAX, ApplicationLogNames, NoApplicationLog

NAMES = ApplicationLogNames("embermq")
PLAIN_ONLY = ApplicationLogNames("embermq", client_id_validation=False, shared_topic_validation=False)
DIGEST_OF_A_B = "c14cddc033f64b9dea80ea675cf280a015e672516090a5626781153dc68fea11"
LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")

levels = st.one_of(
    st.sampled_from(["", "a", "A", "a.b", "a_b", "a-b", "slw", "mlw", "+", ".", "_", "ä", "msg", "x" * 100]),
    st.text(st.characters(exclude_characters="/+#\0", exclude_categories=["Cs"]), max_size=5),
    st.just("f" * 64),
    st.text("abc", max_size=2).map(lambda text: sha256(text.encode()).hexdigest()),
)
filters = st.builds(
    lambda parts, end: "/".join([*parts, *end]),
    st.lists(levels, max_size=4),
    st.sampled_from([[], ["#"], ["mlw"]]),
).filter(bool)
client_ids = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=6),
    levels.filter(bool),
    st.sampled_from(["shared", "shared.a", "shareda", "x" * 240, "x" * 241]),
)


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


@pytest.mark.promise("application-2")
@pytest.mark.parametrize(
    ("client_id", "log"),
    [
        ("billing", "embermq.msg.app.billing"),
        ("Billing7", "embermq.msg.app.Billing7"),
        ("shared", "embermq.msg.app.shared"),
        ("a/b", f"embermq.msg.app.{DIGEST_OF_A_B}"),
        *(
            (odd, f"embermq.msg.app.{digest(odd)}")
            for odd in ("a.b", "a-b", "a_b", "ä", "٣", "a\n", "x" * 234)
        ),
        ("x" * 233, f"embermq.msg.app.{'x' * 233}"),
        (DIGEST_OF_A_B, f"embermq.msg.app.{digest(DIGEST_OF_A_B)}"),
    ],
)
def test_the_log_of_a_client(client_id: str, log: str) -> None:
    assert NAMES.client_log(client_id) == log
    assert NAMES.is_application_log(log)


@pytest.mark.promise("application-11")
@pytest.mark.parametrize(
    ("topic_filter", "tail"),
    [
        ("test/topic", "test.topic"),
        ("test/#", "test.mlw"),
        ("#", "mlw"),
        ("+/a/+", "slw.a.slw"),
        ("/a/", ".a."),
        ("a/b", "a.b"),
        ("A/b", "A.b"),
        *(
            (odd, digest(odd))
            for odd in ("a.b", "a_b", "a-b", "a/slw", "mlw", "$SYS/#", "ä/b", DIGEST_OF_A_B, "x/" * 120)
        ),
        (f"a/{DIGEST_OF_A_B}", f"a.{DIGEST_OF_A_B}"),
    ],
)
def test_the_log_of_a_shared_filter(topic_filter: str, tail: str) -> None:
    log = NAMES.shared_log(topic_filter)
    assert log == f"embermq.msg.app.shared.{tail}"
    assert NAMES.is_application_log(log)
    assert NAMES.shared_group("g-1", topic_filter) == f"application-shared-msg-consumer-group-g-1-{log}"


@pytest.mark.promise("application-11")
def test_a_share_name_that_kafka_would_not_show_is_hashed() -> None:
    for share in ("ä", "a b", "x" * 256, DIGEST_OF_A_B):
        group = NAMES.shared_group(share, "t")
        assert group == f"application-shared-msg-consumer-group-{digest(share)}-embermq.msg.app.shared.t"


@pytest.mark.promise("application-2", "application-11")
@pytest.mark.parametrize("odd", ["a.b", "ä", "x" * 250, DIGEST_OF_A_B])
def test_without_hashes_what_does_not_fit_has_no_log(odd: str) -> None:
    with pytest.raises(NoApplicationLog, match=r"client id '.*application\.client_id_validation is off"):
        PLAIN_ONLY.client_log(odd)
    with pytest.raises(
        NoApplicationLog, match=r"topic filter '.*application\.shared_topic_validation is off"
    ):
        PLAIN_ONLY.shared_log(odd)
    with pytest.raises(NoApplicationLog):
        PLAIN_ONLY.shared_group("g", odd)
    assert PLAIN_ONLY.client_log("a1") == NAMES.client_log("a1")
    assert PLAIN_ONLY.shared_log("a/+") == NAMES.shared_log("a/+")


@pytest.mark.parametrize(
    ("prefix", "problem"),
    [("", "''"), ("a b", "'a b'"), ("ä", "'ä'"), ("x" * (PREFIX_CHARACTERS_MAX + 1), "161 characters.*160")],
)
def test_a_prefix_that_kafka_would_refuse_is_refused_by_name(prefix: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ApplicationLogNames(prefix)


def test_other_topics_are_no_application_logs() -> None:
    for topic in ("embermq.msg.all", "embermq.msg.app.", "other.msg.app.a", "xembermq.msg.app.a"):
        assert not NAMES.is_application_log(topic)


def one_name(names: list[str]) -> set[str]:
    """As Kafka sees it, which holds names that differ in `.` and `_` only for one."""
    return {name.replace(".", "_") for name in names}


@pytest.mark.promise("application-2", "application-11")
@given(
    st.sets(filters, min_size=1, max_size=6),
    st.sets(client_ids, min_size=1, max_size=6),
    st.sampled_from(["embermq", "a_b", "a-b", "x" * PREFIX_CHARACTERS_MAX]),
)
def test_nothing_shares_a_name(some_filters: set[str], ids: set[str], prefix: str) -> None:
    names = ApplicationLogNames(prefix)
    # What one has plainly, the other may have as its hash.
    some_filters |= {digest(one) for one in some_filters}
    ids |= {digest(one) for one in ids}
    logs = [names.shared_log(one) for one in some_filters] + [names.client_log(one) for one in ids]
    assert all(LEGAL.fullmatch(log) for log in logs)
    assert len(one_name(logs)) == len(some_filters) + len(ids)


@pytest.mark.promise("application-11")
@given(st.sets(st.tuples(st.text("ab-.", min_size=1, max_size=4), filters), min_size=1, max_size=6))
def test_no_two_shared_subscriptions_are_one_group(subscriptions: set[tuple[str, str]]) -> None:
    subscriptions |= {(f"{share}-{NAMES.shared_log(one)}", one) for share, one in subscriptions}
    assert len({NAMES.shared_group(*one) for one in subscriptions}) == len(subscriptions)
