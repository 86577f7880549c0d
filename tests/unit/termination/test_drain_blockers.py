"""Messages about blocked drains: a table of situations and the message of each (DIS §17 Beyond)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from karpenter.api.core import Pod, PodDisruptionBudget
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.api.storage import VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec
from karpenter.kube.errors import Forbidden, KubeError, ServerUnavailable, TooManyRequests
from karpenter.model import labels
from karpenter.termination import blockers
from karpenter.termination.blockers import DrainState
from support.builders import NOW, budget, pod, seconds

REFUSED = TooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.")
SEVERAL = ServerUnavailable(
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
)
SHOP = {"labels": {"app": "shop"}}


def protected(value: str, started: float | None = 0.0) -> Pod:
    status = {} if started is None else {"start_time": seconds(started)}
    return pod("p", node_name="n", meta={"annotations": {labels.DO_NOT_DISRUPT: value}}, status=status)


def ending(*, grace: int, since: float, finalizers: tuple[str, ...] = ()) -> Pod:
    """A pod that was deleted ``since`` seconds ago."""
    meta = {
        "deletion_timestamp": NOW - timedelta(seconds=since) + timedelta(seconds=grace),
        "deletion_grace_period_seconds": grace,
        "finalizers": finalizers,
    }
    return pod("p", node_name="n", meta=meta)


def blocker_messages(
    *waiting: Pod, budgets: tuple[PodDisruptionBudget, ...] = (), refusal: KubeError | None = None
) -> list[str]:
    refusals = {} if refusal is None else {listed_pod.metadata.uid: refusal for listed_pod in waiting}
    return list(blockers.pod_blockers(DrainState(waiting, budgets, refusals, NOW)))


CLOSED = budget("keep", {"app": "shop"}, max_unavailable=0)


@pytest.mark.parametrize(
    ("subject", "sentence"),
    [
        (protected("true"), "protected by the annotation karpenter.sh/do-not-disrupt: pod default/p"),
        (
            protected("1h"),
            "protected by the annotation karpenter.sh/do-not-disrupt until 2026-01-01T01:00:00Z: pod default/p",
        ),
        (protected("1h", started=None), "protected by the annotation karpenter.sh/do-not-disrupt: pod default/p"),
        (protected("1h", started=-3600.0), ""),
        (protected("soon"), ""),
        (pod("p", node_name="n"), ""),
        (ending(grace=30, since=29), ""),
        (ending(grace=3600, since=20), ""),
        (ending(grace=3600, since=31), "still within their grace period of 3600 s: pod default/p"),
        (
            ending(grace=30, since=31),
            "past their grace period, their end is not reported by the kubelet: pod default/p",
        ),
        (
            ending(grace=30, since=31, finalizers=("example.com/hold", "example.com/too")),
            "past their grace period, held by finalizers example.com/hold, example.com/too: pod default/p",
        ),
    ],
    ids=[
        "protected",
        "protected-until",
        "protected-not-started",
        "protection-over",
        "protection-invalid",
        "its-turn-will-come",
        "ending",
        "long-ending-young",
        "long-ending",
        "silent-kubelet",
        "foreign-finalizers",
    ],
)
def test_a_pod_is_named_with_what_blocks_it(subject: Pod, sentence: str) -> None:
    assert blocker_messages(subject) == ([sentence] if sentence else [])


def test_a_budget_is_named_once_the_server_has_refused_for_its_sake() -> None:
    subject = pod("p", node_name="n", meta=SHOP)
    assert blocker_messages(subject, budgets=(CLOSED,)) == []
    assert blocker_messages(subject, budgets=(CLOSED,), refusal=REFUSED) == [
        "PodDisruptionBudget default/keep allows no eviction now: pod default/p"
    ]


def test_a_pod_with_two_pdbs_is_reported_as_never_evictable() -> None:
    """DIS-080: whatever they allow."""
    budgets = (CLOSED, budget("also", {"app": "shop"}, max_unavailable="100%"))
    assert blocker_messages(pod("p", node_name="n", meta=SHOP), budgets=budgets, refusal=SEVERAL) == [
        "more than one PodDisruptionBudget (default/also, default/keep), which eviction does not support: pod default/p"
    ]


def test_a_refusal_that_no_pdb_explains_is_reported_in_the_servers_words() -> None:
    """Another webhook may refuse as well, and a budget that lets unhealthy pods go is not to blame (DIS-084)."""
    lenient = budget("keep", {"app": "shop"}, max_unavailable=0, unhealthy_pod_eviction_policy="AlwaysAllow")
    unready = {"conditions": (Condition(type="Ready", status="False"),)}
    subject = pod("p", node_name="n", meta=SHOP, status=unready)
    assert blocker_messages(subject, budgets=(lenient,), refusal=REFUSED) == [
        f"eviction fails ({REFUSED}): pod default/p"
    ]
    assert blocker_messages(subject, refusal=Forbidden("pods/eviction is forbidden", status=403)) == [
        "eviction fails (pods/eviction is forbidden): pod default/p"
    ]


def test_pods_of_one_cause_share_a_sentence_and_the_text_does_not_depend_on_their_order() -> None:
    waiting = [pod(f"p{number}", node_name="n", meta=SHOP) for number in range(7)]
    expected = [
        "PodDisruptionBudget default/keep allows no eviction now: "
        "pods default/p0, default/p1, default/p2, default/p3, default/p4 and 2 other(s)"
    ]
    assert blocker_messages(*waiting, budgets=(CLOSED,), refusal=REFUSED) == expected
    assert blocker_messages(*reversed(waiting), budgets=(CLOSED,), refusal=REFUSED) == expected


def attachment(**meta: object) -> VolumeAttachment:
    return VolumeAttachment(
        metadata=ObjectMeta(name="csi-1", **meta),
        spec=VolumeAttachmentSpec(
            attacher="ebs.csi.aws.com", node_name="n", source=VolumeAttachmentSource(persistent_volume_name="pv-1")
        ),
    )


def test_a_volume_is_named_with_its_claim_and_its_attacher() -> None:
    assert blockers.volume_blocker(attachment(), "") == "volume pv-1 is still attached, VolumeAttachment csi-1"
    detaching = attachment(deletion_timestamp=NOW, finalizers=("external-attacher/ebs",))
    assert blockers.volume_blocker(detaching, "default/data") == (
        "volume pv-1 (PersistentVolumeClaim default/data) is still attached, VolumeAttachment csi-1 waits for finalizer "
        "external-attacher/ebs"
    )


def test_an_instance_is_named_with_the_clouds_error() -> None:
    assert blockers.instance_blocker("aws:///i-1", None) == "instance aws:///i-1 is still shutting down"
    assert blockers.instance_blocker("aws:///i-1", RuntimeError("zone is shifted away")) == (
        "the cloud does not end instance aws:///i-1: zone is shifted away"
    )


def test_text_is_bounded_whatever_it_is_made_of() -> None:
    """A condition and an event must hold it."""
    long = blockers.instance_blocker("i", RuntimeError("x" * 10_000))
    assert len(long) < 400
    assert blockers.join_blockers([str(number) for number in range(8)]) == "0; 1; 2; 3; 4 and 3 other(s)"
    assert len(blockers.deadline_blocker("y" * 10_000)) < 500


def test_foreign_finalizers_are_named_with_the_object_they_keep() -> None:
    meta = ObjectMeta(name="n", finalizers=("example.com/hold",))
    assert blockers.finalizer_blocker("Node", meta) == "Node n is held by finalizer example.com/hold"
