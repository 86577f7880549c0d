"""Registration hooks of a cloud: a node stays closed until all are satisfied (OPS §1.4)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from karpenter.api import kinds
from karpenter.api.karpenter import NodeClaim, NodePoolTaint
from karpenter.model import labels
from karpenter.providers.contract import HookPending, HookSatisfied, ProviderError
from support.virtual_cluster import VirtualCluster, in_virtual_time, startup


class Hook:
    """Gives scripted answers, one per call; the last one again and again."""

    def __init__(self, name: str, *answers: HookSatisfied | HookPending | Exception) -> None:
        self.name = name
        self.answers = list(answers)
        self.asked: list[float] = []

    async def check(self, claim: NodeClaim) -> HookSatisfied | HookPending:
        self.asked.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def joined(cluster: VirtualCluster, *hooks: Hook, **fields: object) -> None:
    """A running controller whose cloud has these hooks, and a claim whose node has joined."""
    cluster.cloud.hooks = hooks
    await cluster.start()
    await cluster.claim(**fields)
    await asyncio.sleep(0.1)
    await cluster.join()
    await asyncio.sleep(0.1)


async def registered(cluster: VirtualCluster) -> bool:
    return (await cluster.condition("c", "Registered") or ("",))[0] == "True"


@in_virtual_time
async def test_a_node_whose_hook_is_pending_is_claimed_and_stays_closed(cluster: VirtualCluster) -> None:
    """OPS-L13, OPS-031"""
    later = timedelta(seconds=30)
    await joined(
        cluster,
        Hook("first", HookPending(later)),
        Hook("fine", HookSatisfied()),
        Hook("last", HookPending(later)),
        taints=(NodePoolTaint(key="own", effect="NoSchedule"),),
        startup_taints=(startup("starting"),),
        metadata={"labels": {"team": "a"}},
    )
    node = await cluster.get_node()
    assert [taint.key for taint in node.spec.taints] == ["karpenter.sh/unregistered", "own", "starting"]
    assert node.metadata.finalizers == (labels.TERMINATION_FINALIZER,)
    assert node.metadata.owner_references[0].name == "c"
    assert node.metadata.labels["team"] == "a"
    assert labels.REGISTERED not in node.metadata.labels
    assert await cluster.condition("c", "Registered") == ("Unknown", "RegistrationHookPending", "first, last")
    assert (await cluster.get_claim()).status.node_name == ""
    assert cluster.lines("awaiting registration hooks")[0]["hooks"] == ["first", "last"]
    assert cluster.lines("Reconciler error") == []


@in_virtual_time
async def test_a_hook_that_fails_is_an_error_and_keeps_the_node_closed(cluster: VirtualCluster) -> None:
    """OPS-L14, OPS-031"""
    await joined(cluster, Hook("waits", HookPending(timedelta(seconds=5))), Hook("breaks", ProviderError("no answer")))
    assert labels.UNREGISTERED_TAINT in (await cluster.get_node()).spec.taints
    assert await cluster.condition("c", "Registered") == ("Unknown", "RegistrationHookPending", "waits, breaks")
    assert cluster.lines("Reconciler error")[0]["error"] == 'registration hook "breaks" failed, no answer'


@in_virtual_time
async def test_a_node_registers_when_its_hook_is_satisfied_and_gets_the_labels_of_the_hook(
    cluster: VirtualCluster,
) -> None:
    """OPS-L15, OPS-032"""
    learned = HookSatisfied({"example.com/partition": "3"}, {"example.com/note": "hello"})
    hook = Hook("partition", HookPending(timedelta(seconds=7)), learned)
    await joined(cluster, hook)
    asked = len(hook.asked)
    await asyncio.sleep(7)
    assert await registered(cluster)
    assert hook.asked[-1] - hook.asked[0] <= 7.5
    claim, node = await cluster.get_claim(), await cluster.get_node()
    for meta in (claim.metadata, node.metadata):
        assert meta.labels["example.com/partition"] == "3"
        assert meta.annotations["example.com/note"] == "hello"
    assert node.spec.taints == ()
    assert asked >= 1
    done = len(hook.asked)
    await asyncio.sleep(3600)
    assert len(hook.asked) == done


@in_virtual_time
async def test_without_hooks_a_node_registers_at_once(cluster: VirtualCluster) -> None:
    """OPS-L16. OPS-220: hooks are optional."""
    await joined(cluster)
    assert await registered(cluster)


@in_virtual_time
async def test_a_hook_without_a_time_is_called_with_growing_pauses(cluster: VirtualCluster) -> None:
    """OPS-030: "retry with back-off"."""
    hook = Hook("slow", HookPending())
    await joined(cluster, hook)
    await asyncio.sleep(300)
    pauses = [after - before for before, after in zip(hook.asked, hook.asked[1:], strict=False)]
    # Events wake looks in between; left alone, the pauses double up to a minute.
    assert [round(pause) for pause in pauses if pause > 0.5][:6] == [1, 2, 4, 8, 16, 32]
    assert max(pauses) <= 60.1
    assert cluster.lines("Reconciler error") == []


@in_virtual_time
async def test_a_hook_that_never_answers_delays_its_own_claim_only_and_that_is_given_up_in_time(
    cluster: VirtualCluster,
) -> None:
    """OPS-051, OPS-733"""

    class Silent(Hook):
        async def check(self, claim: NodeClaim) -> HookSatisfied | HookPending:
            if claim.metadata.name == "c":
                await asyncio.Event().wait()
            return HookSatisfied()

    cluster.cloud.hooks = (Silent("silent", HookSatisfied()),)
    await cluster.start()
    for name in ("c", "d"):
        await cluster.claim(name)
    await asyncio.sleep(0.1)
    for name in ("c", "d"):
        await cluster.join(name)
    await asyncio.sleep(0.1)
    assert (await cluster.condition("d", "Registered") or ("",))[0] == "True"
    await asyncio.sleep(61)
    assert "asking hook silent took longer than 60 s" in cluster.lines("Reconciler error")[0]["error"]
    await asyncio.sleep(17 * 60)
    claims = [claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM)]
    assert claims == ["d"]
    assert cluster.ended_for("registration_timeout") == 1
