"""Memory and match time of the subscription trie: `python -m benchmarks.subscription_trie`.

Each shape is a set of filters as some fleet, or an attacker, would subscribe to them. For each it prints the number of
filters, the memory that the trie takes a filter, and the time of one match in microseconds (best of five).
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable

from embermq.mqtt.topics.trie import SubscriptionTrie

MATCHES = 20_000
ROUNDS = 5
Shape = tuple[list[str], list[str]]


def fleet(rng: random.Random) -> Shape:
    """Each of 20,000 devices has `devices/<id>/commands/#`; topics are of devices."""
    ids = [f"{number:06d}" for number in range(20_000)]
    return (
        [f"devices/{name}/commands/#" for name in ids],
        [f"devices/{rng.choice(ids)}/commands/reboot" for _ in range(MATCHES)],
    )


def dashboards(rng: random.Random) -> Shape:
    """A few filters with wildcards at several levels, and topics that many of them match."""
    sites, kinds = [f"site{number}" for number in range(50)], ["temperature", "humidity", "power", "alarm"]
    filters = [f"plant/{site}/+/{kind}" for site in sites for kind in kinds]
    filters += [f"plant/+/+/{kind}" for kind in kinds] + ["plant/#", "+/site1/#", "#"]
    topics = [f"plant/{rng.choice(sites)}/m{rng.randrange(100)}/{rng.choice(kinds)}" for _ in range(MATCHES)]
    return filters, topics


def unmatched(rng: random.Random) -> Shape:
    """Topics that leave the tree at its first or second level."""
    filters, _ = fleet(rng)
    return filters, [f"devices/x{rng.randrange(1_000)}/state" for _ in range(MATCHES)]


def deep(rng: random.Random) -> Shape:
    """4,000 filters of 120 levels that share only the first few; topics match one each."""
    words = ["a", "b", "+"]
    filters = ["/".join(["f", *(rng.choice(words) for _ in range(118)), "#"]) for _ in range(4_000)]
    return filters, [rng.choice(filters[:500]).replace("+", "c").replace("#", "d") for _ in range(2_000)]


def measure(name: str, shape: Callable[[random.Random], Shape]) -> None:
    """Build the trie of a shape and print its line."""
    filters, topics = shape(random.Random(7))
    gc.collect()
    tracemalloc.start()
    trie: SubscriptionTrie[int] = SubscriptionTrie()
    for number, topic_filter in enumerate(filters):
        trie.add(topic_filter, number)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for topic in topics:
            trie.match(topic)
        best = min(best, (time.process_time() - began) / len(topics))
    print(f"{name:<12} {len(filters):>7} filters {size / len(filters):>8.0f} B/filter {best * 1e6:>8.2f} µs")


if __name__ == "__main__":
    for each in (fleet, dashboards, unmatched, deep):
        measure(each.__name__, each)
