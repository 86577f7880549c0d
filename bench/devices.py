"""Pods with device claims: how long a decision takes, and what plain pods take on the same types."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from bench.figures import Figure
from karpenter.api.core import Pod
from karpenter.api.resource_claims import ResourceClaimTemplate
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.search.linear_program import load_solver
from karpenter.scheduling.solver import solve
from support.builders import NOW, node_pool, pod, snapshot
from support.device_builders import (
    DRIVER,
    alternative,
    claim_template,
    device_class,
    every,
    exactly,
    first_available,
    gpu_type,
    of_template,
    same,
)
from support.instance_types import index_of

PODS = 1_000
TYPES = 60
_MODELS = ("a100", "h100", "l4", "t4", "v100", "l40s")
_MODEL = f'device.attributes["{DRIVER}"].model'
_MEMORY = f'device.capacity["{DRIVER}"].memory'


def figures() -> Iterator[Figure]:
    """CPU seconds of the third decision, as processes decide again and again, and of the first."""
    load_solver()
    shapes = _shapes()
    names = [template.metadata.name for template in shapes]
    claiming = [of_template(f"p{at:04}", names[at % len(names)], requests=_requests(at)) for at in range(PODS)]
    seconds = [_seconds(claiming, [device_class(), *shapes]) for _ in range(3)]
    yield Figure(f"decision for {PODS} pods with {len(names)} claim shapes over {TYPES} types, first", seconds[0], "s")
    yield Figure(f"decision for {PODS} pods with {len(names)} claim shapes over {TYPES} types", seconds[2], "s")
    yield Figure(f"the same pods without claims over {TYPES} types", _seconds(_plain(), [device_class()]), "s")


def _requests(at: int) -> dict[str, str | int]:
    return {"cpu": f"{1 + at % 3}", "memory": "1Gi"}


def _plain() -> list[Pod]:
    return [pod(f"p{at:04}", _requests(at)) for at in range(PODS)]


def _seconds(pods: Sequence[Pod], others: Sequence[object]) -> float:
    indexes = {"np": index_of(_types())}
    problem = build_problem(snapshot(node_pool("np"), *others, *pods), indexes, NOW)
    begun = time.process_time()
    solution = solve(problem, indexes)
    assert not solution.unschedulable
    return time.process_time() - begun


def _types() -> list[InstanceType]:
    counts = (1, 2, 4, 8)
    return [
        gpu_type(f"t{at:02}", count, _MODELS[at % 6], links=max(1, count // 2), cpu=8 * count + at // 4)
        for at in range(TYPES)
        for count in (counts[at % 4],)
    ]


def _shapes() -> list[ResourceClaimTemplate]:
    one = [claim_template(f"one-{each}", exactly("r", 1, f'{_MODEL} == "{each}"')) for each in _MODELS]
    pairs = [
        claim_template(f"pair-{each}", exactly("r", 2, f'{_MODEL} == "{each}"'), constraints=[same("link")])
        for each in _MODELS
    ]
    either = (alternative("h", 1, f'{_MODEL} == "h100"'), alternative("a", 2, f'{_MODEL} == "a100"'))
    other = (alternative("l", 1, f'{_MODEL} == "l4"'), alternative("t", 1, f'{_MODEL} == "t4"'))
    return [
        *one,
        *pairs,
        claim_template("any", exactly()),
        claim_template("any-two", exactly("r", 2)),
        claim_template("four", exactly("r", 4)),
        claim_template("large", exactly("r", 1, f'{_MEMORY}.compareTo(quantity("40Gi")) >= 0')),
        claim_template("either", first_available("r", *either)),
        claim_template("other", first_available("r", *other)),
        claim_template("all", every("r", f'{_MODEL} == "t4"')),
        claim_template("not", exactly("r", 1, f'{_MODEL} != "t4"')),
    ]
