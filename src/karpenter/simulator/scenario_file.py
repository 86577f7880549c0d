"""Scenarios: a YAML file that composes generators of load, and the packaged ones.

    days: 7
    workloads:
      - {kind: dailyWave, name: web, replicas: 40, amplitude: 0.5, cpu: 500m, memory: 1Gi}
      - {kind: batchBursts, name: reports, jobs: 30, perDay: 3, runMinutes: 20, cpu: "2", memory: 8Gi}

``karpenter schema scenario`` prints its JSON schema.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta

from karpenter.model import labels, quantity
from karpenter.simulator.load_generators import DAY, GENERATOR_KINDS, AnyGenerator
from karpenter.simulator.pod_rules import NeighbourRule, SpreadRule
from karpenter.simulator.workload import PodLife, Workload, WorkloadError, ordered_workload
from karpenter.simulator.world import World, WorldError
from karpenter.simulator.yaml_lines import decode_yaml, line_of, read_file

_PACKAGE = "karpenter.simulator"
_FOLDER = "scenarios"


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What runs, in which world, and for how many days by default."""

    workloads: Annotated[list[AnyGenerator], Meta(min_length=1)]
    world: World = World()
    days: Annotated[float, Meta(gt=0)] = 7.0
    description: str = ""


def scenario_schema() -> dict[str, object]:
    """The JSON schema of scenario files."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Scenario)}


def packaged_scenarios() -> tuple[str, ...]:
    """The names of the packaged scenarios."""
    folder = resources.files(_PACKAGE) / _FOLDER
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir()))


def read_scenario(name: str) -> Scenario:
    """A packaged scenario, or one in a file. Raises ``WorkloadError``."""
    if name in packaged_scenarios():
        content = (resources.files(_PACKAGE) / _FOLDER / f"{name}.yaml").read_bytes()
    elif Path(name).suffix in (".yaml", ".yml", ".json") or Path(name).exists():
        content = read_file(Path(name))
    else:
        names = ", ".join(packaged_scenarios())
        raise WorkloadError(f"there is no scenario {name!r}; choose {names}, or a YAML file")
    scenario = decode_yaml(content, name, Scenario, GENERATOR_KINDS)
    _check(scenario, name, content)
    return scenario


def _check(scenario: Scenario, source: str, content: bytes) -> None:
    root = yaml.compose(content, Loader=yaml.SafeLoader)
    _check_world(scenario.world, source, root, "$.world")
    names: set[str] = set()
    for index, generator in enumerate(scenario.workloads):
        if generator.name in names:
            line = line_of(root, f"$.workloads[{index}].name")
            raise WorkloadError(f"{source}: line {line}: a workload {generator.name!r} stands in it already")
        names.add(generator.name)
        for member, text in (("cpu", generator.cpu), ("memory", generator.memory)):
            try:
                quantity.parse_milli(text)
            except quantity.QuantityError as error:
                line = line_of(root, f"$.workloads[{index}].{member}")
                raise WorkloadError(f"{source}: line {line}: {member}: {error}") from None
    _check_neighbours(scenario.workloads, names, source, root)


def _check_neighbours(
    workloads: Sequence[AnyGenerator], names: Collection[str], source: str, root: yaml.Node | None
) -> None:
    """Workloads that pods are to be beside, or apart from, must be in the scenario."""
    for index, generator in enumerate(workloads):
        for member, rules in generator.neighbour_rules.items():
            for number, rule in enumerate(rules):
                if rule.workload and rule.workload not in names:
                    line = line_of(root, f"$.workloads[{index}].{member}[{number}].workload")
                    raise WorkloadError(
                        f"{source}: line {line}: {member}: there is no workload {rule.workload!r} in it"
                    )


def check_topology_keys(scenario: Scenario, known: Collection[str]) -> None:
    """That nodes have the labels by which pods ask for other pods: without, pods would wait for ever and no one said why.

    ``known``: the labels that nodes of the study may have. Raises ``WorkloadError``.
    """
    for generator in scenario.workloads:
        rules_by_member: dict[str, Sequence[SpreadRule | NeighbourRule]] = {
            "topologySpreadConstraints": generator.topology_spread_constraints,
            **generator.neighbour_rules,
        }
        for member, rules in rules_by_member.items():
            for rule in rules:
                if labels.normalise(rule.topology_key) not in known:
                    raise WorkloadError(
                        f"workload {generator.name}: {member}: nodes have no label {rule.topology_key!r}; "
                        f"choose one of {', '.join(sorted(known))}, or add the label to the NodePool"
                    )


def read_world(path: Path) -> World:
    """A world in a file of its own. Raises ``WorkloadError``."""
    content = read_file(path)
    world = decode_yaml(content, str(path), World)
    _check_world(world, str(path), yaml.compose(content, Loader=yaml.SafeLoader), "$")
    return world


def _check_world(world: World, source: str, root: yaml.Node | None, place: str) -> None:
    try:
        world.check()
    except WorldError as error:
        raise WorkloadError(f"{source}: line {line_of(root, f'{place}.{error.place}')}: {error}") from None


def scenario_workload(scenario: Scenario, name: str, seed: int, days: float | None) -> Workload:
    """The pods of a scenario. ``days`` None: as many as the scenario says."""
    duration = max(1, round((scenario.days if days is None else days) * DAY))
    pods: list[PodLife] = []
    for generator in scenario.workloads:
        pods += generator.pods(seed, duration)
    return ordered_workload(name, pods, duration)
