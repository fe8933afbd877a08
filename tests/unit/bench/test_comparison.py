"""What `make bench` chooses and how it sums up, without a broker."""

from __future__ import annotations

import pytest
from benchmarks.plan import MOSQUITTO, REFERENCE, SCENARIOS, Scenario, chosen, embermq
from benchmarks.run import Measured, summarise

from embermq.bench.report import IdleCost, IdleReport

IDLE = Scenario(
    name="idle",
    title="idle",
    arguments=("idle",),
    full=(),
    quick=(),
    variants=(MOSQUITTO, embermq("embermq fsync")),
)


def idle(variant: str, number: int, pss_mib: int) -> Measured:
    cost = IdleCost(
        name="broker",
        pid=1,
        pss_before_bytes=pss_mib * 2**20,
        pss_with_bytes=pss_mib * 2**20 + 10 * 2048,
        bytes_per_connection=2048,
        connect_cpu_s=0.1,
        idle_cores=0,
    )
    report = IdleReport(connections=10, connect_s=1, connects_per_s=10, processes=(cost,))
    return Measured(scenario="idle", variant=variant, round=number, idle=report)


def test_medians_and_ratios_to_the_reference() -> None:
    measured = [idle(REFERENCE, number, 4) for number in range(3)]
    measured += [idle("embermq fsync", number, mib) for number, mib in enumerate((10, 40, 12))]
    reference, ember = summarise(IDLE, measured)
    assert reference.figures["idle PSS, MiB"] == 4
    assert ember.figures["idle PSS, MiB"] == 12
    assert ember.ratios["idle PSS, MiB"] == 3
    assert ember.ratios["KiB a connection"] == 1


def test_without_the_pipeline_no_variant_has_one() -> None:
    scenarios = chosen([], [], pipeline=False)
    assert [scenario.name for scenario in scenarios] == [scenario.name for scenario in SCENARIOS]
    assert not any(variant.has_pipeline for scenario in scenarios for variant in scenario.variants)
    for scenario in scenarios:
        arguments = [variant.arguments for variant in scenario.variants if variant.broker == "embermq"]
        assert all("--no-pipeline" in given for given in arguments)


def test_scenarios_and_variants_are_chosen_by_name() -> None:
    (only,) = chosen(["paced"], [REFERENCE], pipeline=True)
    assert only.name == "paced"
    assert [variant.name for variant in only.variants] == [REFERENCE]
    with pytest.raises(ValueError, match="'pased' is unknown"):
        chosen(["pased"], [], pipeline=True)
    with pytest.raises(ValueError, match="'hivemq' is unknown"):
        chosen([], ["hivemq"], pipeline=True)
