"""The scheduler configuration as far as plans need it (OPS-330, OPS-O7)."""

from __future__ import annotations

import pytest

from karpenter.api.scheduling_constraints import TopologySpreadConstraint
from karpenter.scheduling.scheduler_config import SchedulerConfig, SchedulerConfigError, parse_scheduler_config

ZONE = "topology.kubernetes.io/zone"
PATH = "podTopologySpread.defaultConstraints"
INVALID = f"parsing scheduler config, validating scheduler config, {PATH}"


def written(*constraints: str) -> str:
    join = "".join(f"\n  - {{{constraint}}}" for constraint in constraints)
    return f"podTopologySpread:\n  defaultConstraints:{join}"


GOOD = f"maxSkew: 1, topologyKey: {ZONE}, whenUnsatisfiable: DoNotSchedule"


@pytest.mark.parametrize("text", ["", "  ", "{}", "podTopologySpread: {}", written("").replace("\n  - {}", " []")])
def test_an_empty_configuration_sets_nothing(text: str) -> None:
    assert parse_scheduler_config(text) == SchedulerConfig()


def test_constraints_are_read_from_yaml_and_from_json() -> None:
    """K15-047"""
    expected = SchedulerConfig(
        (
            TopologySpreadConstraint(max_skew=1, topology_key=ZONE, when_unsatisfiable="DoNotSchedule"),
            TopologySpreadConstraint(
                max_skew=2, topology_key=ZONE, when_unsatisfiable="ScheduleAnyway", node_taints_policy="Honor"
            ),
        )
    )
    second = f"maxSkew: 2, topologyKey: {ZONE}, whenUnsatisfiable: ScheduleAnyway, nodeTaintsPolicy: Honor"
    assert parse_scheduler_config(written(GOOD, second)) == expected
    json = (
        f'{{"podTopologySpread":{{"defaultConstraints":[{{"maxSkew":1,"topologyKey":"{ZONE}",'
        '"whenUnsatisfiable":"DoNotSchedule"}]}}'
    )
    assert parse_scheduler_config(json) == SchedulerConfig(expected.default_constraints[:1])
    assert str(expected) == f"{ZONE} DoNotSchedule, {ZONE} ScheduleAnyway"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("unknown: 1", "parsing scheduler config, decoding scheduler config, Object contains unknown field `unknown`"),
        ("podTopologySpread: {defaultingType: List}", "unknown field `defaultingType`"),
        (written(GOOD + ", unknown: 1"), "unknown field `unknown`"),
        ("[]", "Expected `object`"),
        ("a: b: c", "parsing scheduler config, decoding scheduler config, not YAML"),
        (written(f"topologyKey: {ZONE}, whenUnsatisfiable: DoNotSchedule"), "missing required field `maxSkew`"),
        (written(GOOD.replace("1", "many")), "Expected `int`"),
        (written(GOOD.replace("1", "0")), f"{INVALID}[0].maxSkew must be greater than 0"),
        (written(GOOD.replace(ZONE, "''")), f"{INVALID}[0].topologyKey must be set"),
        (written(GOOD.replace(ZONE, "a b")), f'{INVALID}[0].topologyKey "a b" is not a valid label name, it must'),
        (
            written(GOOD.replace("DoNotSchedule", "Maybe")),
            f'{INVALID}[0].whenUnsatisfiable "Maybe" must be one of "DoNotSchedule" or "ScheduleAnyway"',
        ),
        (written("maxSkew: 1, topologyKey: a"), f'{INVALID}[0].whenUnsatisfiable "" must be one of'),
        (
            written(GOOD + ", labelSelector: {}"),
            f"{INVALID}[0].labelSelector must not be set, as selectors are deduced for each pod",
        ),
        (
            written(GOOD + ", matchLabelKeys: [a]"),
            f"{INVALID}[0].matchLabelKeys must not be set, as it has no effect on default constraints",
        ),
        (written(GOOD + ", minDomains: 0"), f"{PATH}[0].minDomains is 0"),
        (written(GOOD + ", nodeTaintsPolicy: Maybe"), f"{PATH}[0].nodeTaintsPolicy is 'Maybe'"),
        (written(GOOD, GOOD), f"{INVALID}[1] is a duplicate of [0], {{{ZONE}, DoNotSchedule}}"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(text: str, says: str) -> None:
    """OPS-O7, K15-048"""
    with pytest.raises(SchedulerConfigError) as refused:
        parse_scheduler_config(text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
