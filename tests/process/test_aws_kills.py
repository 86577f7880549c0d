"""The controller's process is killed between a request and its answer, again and again: its successors buy no instance twice.

A story has four deaths, each at a seeded moment: of the requests that create claims, record a purchase, buy, look back, or record
an instance, the n-th is the process's last. Before each life come pods that need more instances. At the end there are as many
instances as pods, each claim has one, and there never was another instance: a second purchase would end as garbage at once, and
still be in the double's books.
"""

from __future__ import annotations

import random

import pytest

from support.aws.kill_points import CREATE, LOOK_BACK, MARK, TELL, Fate, Moment
from support.aws.process_scene import ALONE, Scene

pytestmark = pytest.mark.timeout(900)

LIVES = 4
PODS = 6
SEEDS = range(25)
_IN_EVERY_RUN = (0,)
_FLEETS = "CreateFleet"
_TEMPLATES = "CreateLaunchTemplate"


def moments(seed: int) -> list[Moment]:
    """The deaths of a story."""
    numbers = random.Random(seed)
    result: list[Moment] = []
    for life in range(LIVES):
        kinds = [CREATE, MARK, TELL, _FLEETS, _FLEETS, _FLEETS]
        if life == 0:
            kinds.append(_TEMPLATES)
        if result and result[-1].request == _FLEETS:
            kinds.extend([LOOK_BACK, LOOK_BACK])
        request = numbers.choice(kinds)
        on_aws = request in (_FLEETS, _TEMPLATES, LOOK_BACK)
        most = {_FLEETS: 2, _TEMPLATES: 1, LOOK_BACK: 1}.get(request, PODS)
        fate = numbers.choice(tuple(Fate) if on_aws else (Fate.NEVER, Fate.UNHEARD))
        result.append(Moment(request, numbers.randint(1, most), fate))
    return result


@pytest.mark.soak
@pytest.mark.parametrize("seed", [pytest.param(n, marks=() if n in _IN_EVERY_RUN else pytest.mark.soak) for n in SEEDS])
async def test_killed_between_request_and_answer_nothing_is_bought_twice(cluster: Scene, seed: int) -> None:
    """AWS-093, AWS-750"""
    for moment in moments(seed):
        cluster.ask(PODS)
        await cluster.life_until(moment)
    with cluster.controller(*ALONE):
        await cluster.until(lambda: cluster.lacking(LIVES * PODS))
    cluster.ambush.release_all()
    assert len(cluster.aws.control.machines()) == LIVES * PODS
