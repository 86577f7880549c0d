"""The controller's process is killed while it ends instances: all that were to go are gone, and only those."""

from __future__ import annotations

import pytest

from support.aws.kill_points import DELETE, LET_GO, Fate, Moment
from support.aws.messages import spot_interruption
from support.aws.process_scene import ALONE, Scene

pytestmark = pytest.mark.timeout(900)

PODS = 6
_IN_EVERY_RUN = Moment("TerminateInstances", 1, Fate.UNHEARD)
_ENDINGS = (
    Moment("TerminateInstances", 1, Fate.NEVER),
    Moment("TerminateInstances", 1, Fate.UNHEARD),
    Moment("TerminateInstances", 1, Fate.LATE),
    Moment(LET_GO, 1, Fate.NEVER),
    Moment(LET_GO, 3, Fate.UNHEARD),
)
_INTERRUPTIONS = (
    Moment(DELETE, 1, Fate.NEVER),
    Moment(DELETE, 1, Fate.UNHEARD),
    Moment("DeleteMessage", 1, Fate.NEVER),
    Moment("DeleteMessage", 1, Fate.UNHEARD),
    Moment("TerminateInstances", 1, Fate.NEVER),
    Moment("TerminateInstances", 1, Fate.UNHEARD),
    Moment("TerminateInstances", 1, Fate.LATE),
    Moment(LET_GO, 1, Fate.UNHEARD),
    Moment("CreateFleet", 1, Fate.NEVER),
    Moment("CreateFleet", 1, Fate.UNHEARD),
    Moment("CreateFleet", 1, Fate.LATE),
)


_MARKED_ENDINGS = [
    pytest.param(moment, id=str(moment), marks=() if moment == _IN_EVERY_RUN else pytest.mark.soak)
    for moment in _ENDINGS
]


@pytest.mark.parametrize("moment", _MARKED_ENDINGS)
async def test_killed_while_it_ends_instances_none_is_left(cluster: Scene, moment: Moment) -> None:
    """AWS-526, OPS-211"""
    cluster.aws.control.set_timing(shutting_down=1.0)
    cluster.ask(PODS)
    with cluster.controller(*ALONE) as running:
        await cluster.until(lambda: cluster.lacking(PODS))
        await cluster.clear()
        await cluster.struck(moment, running, running.kill)
    with cluster.controller(*ALONE):
        await cluster.until(lambda: cluster.lacking(0))
    cluster.ambush.release_all()
    assert len(cluster.aws.control.machines()) == PODS


@pytest.mark.soak
@pytest.mark.parametrize("moment", _INTERRUPTIONS, ids=str)
async def test_killed_while_it_answers_an_interruption_one_instance_is_replaced_by_one(
    cluster: Scene, moment: Moment
) -> None:
    """AWS-640, AWS-645: a message that was not deleted comes again after twenty seconds, and changes nothing any more."""
    cluster.ask(PODS)
    with cluster.controller(*ALONE):
        await cluster.until(lambda: cluster.lacking(PODS))
    victim = next(machine["instance_id"] for machine in cluster.machines() if machine["capacity_type"] == "spot")
    cluster.queue.send(spot_interruption(victim))
    # A process that starts knows all claims before it listens.
    await cluster.life_until(moment)

    def missing() -> str:
        if victim in {machine["instance_id"] for machine in cluster.machines()}:
            return f"{victim} is still there"
        return cluster.lacking(PODS) or ("a message is left" if cluster.queue.waiting() else "")

    with cluster.controller(*ALONE):
        await cluster.until(missing)
    cluster.ambush.release_all()
    assert len(cluster.aws.control.machines()) == PODS + 1
