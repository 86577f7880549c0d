"""The controller process is killed repeatedly between a request and its answer: its successors launch no instance twice.

Each test kills four processes, each at a kill point chosen by a seed: the n-th request of a kind (create NodeClaims, record a
launch batch, CreateFleet, look for a launch batch, record an instance) is the last of its process. New pods are added before each
process starts. At the end there are as many instances as pods and each NodeClaim has one. An instance launched twice would be
terminated by garbage collection, but the double would still list it.
"""

from __future__ import annotations

import random

import pytest

from support.aws.controller_cluster import NO_LEADER_ELECTION, ControllerCluster
from support.aws.kill_points import CREATE, FIND_BATCH, RECORD_BATCH, RECORD_INSTANCE, KillPoint, RequestOutcome

pytestmark = pytest.mark.timeout(900)

PROCESSES = 4
PODS = 6
SEEDS = range(25)
_DEFAULT_SEEDS = (0,)
_FLEETS = "CreateFleet"
_TEMPLATES = "CreateLaunchTemplate"


def kill_points(seed: int) -> list[KillPoint]:
    """The kill points of one test."""
    numbers = random.Random(seed)
    result: list[KillPoint] = []
    for process in range(PROCESSES):
        kinds = [CREATE, RECORD_BATCH, RECORD_INSTANCE, _FLEETS, _FLEETS, _FLEETS]
        if process == 0:
            kinds.append(_TEMPLATES)
        if result and result[-1].request == _FLEETS:
            kinds.extend([FIND_BATCH, FIND_BATCH])
        request = numbers.choice(kinds)
        on_aws = request in (_FLEETS, _TEMPLATES, FIND_BATCH)
        most = {_FLEETS: 2, _TEMPLATES: 1, FIND_BATCH: 1}.get(request, PODS)
        outcome = numbers.choice(
            tuple(RequestOutcome) if on_aws else (RequestOutcome.NOT_EXECUTED, RequestOutcome.ANSWER_LOST)
        )
        result.append(KillPoint(request, numbers.randint(1, most), outcome))
    return result


@pytest.mark.soak
@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=() if n in _DEFAULT_SEEDS else pytest.mark.soak) for n in SEEDS]
)
async def test_a_controller_killed_between_request_and_answer_launches_nothing_twice(
    cluster: ControllerCluster, seed: int
) -> None:
    """AWS-093, AWS-750"""
    for kill_point in kill_points(seed):
        cluster.add_pods(PODS)
        await cluster.run_until_killed(kill_point)
    with cluster.controller(*NO_LEADER_ELECTION):
        await cluster.until(lambda: cluster.missing_for(PROCESSES * PODS))
    cluster.kill_trigger.release_all()
    assert len(cluster.aws.control.instances()) == PROCESSES * PODS
