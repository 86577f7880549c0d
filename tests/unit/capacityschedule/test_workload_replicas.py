"""Which replicas workloads get while a schedule sleeps: what they keep, who else sets them, annotations of kube-downscaler."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from karpenter.api.apps import (
    ManagedFieldsEntry,
    ManagedObjectMeta,
    PodTemplateAnnotations,
    ScalableSpec,
    ScalableWorkload,
)
from karpenter.api.autoscaling import HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, ScaleTargetReference
from karpenter.api.kinds import SCALABLE_DEPLOYMENT
from karpenter.api.meta import ObjectMeta
from karpenter.capacityschedule.downscaler_annotations import DownscalerAnnotations
from karpenter.capacityschedule.workload_replicas import (
    ReplicasChange,
    ScaleDownRules,
    change_for_sleep,
    change_for_waking,
)
from karpenter.model import labels

#: A Tuesday, 23:00 in Berlin.
_NIGHT = datetime(2026, 10, 6, 21, tzinfo=UTC)
_MORNING = datetime(2026, 10, 7, 6, tzinfo=UTC)
_SCALED = {labels.SCALED_DOWN: "true"}


def _workload(
    replicas: int | None, manager: str = "", template: Mapping[str, str] = {}, **meta: object
) -> ScalableWorkload:
    fields = (ManagedFieldsEntry(manager=manager, fields={"f:spec": {"f:replicas": {}}}),) if manager else ()
    metadata = ManagedObjectMeta(name="web", namespace="dev", managed_fields=fields, **meta)
    pods = PodTemplateAnnotations(metadata=ObjectMeta(annotations=template))
    return ScalableWorkload(metadata=metadata, spec=ScalableSpec(replicas=replicas, template=pods))


def _autoscaler(least: int | None, kind: str = "Deployment") -> HorizontalPodAutoscaler:
    target = ScaleTargetReference(kind=kind, name="web")
    spec = HorizontalPodAutoscalerSpec(scale_target_ref=target, min_replicas=least, max_replicas=9)
    return HorizontalPodAutoscaler(metadata=ObjectMeta(name="web"), spec=spec)


def _sleep(workload: ScalableWorkload, *autoscalers: HorizontalPodAutoscaler, **rules: object) -> ReplicasChange | None:
    defaults = {"began_at": _NIGHT, "namespace_annotations": {}, "spares_do_not_disrupt": True} | rules
    made = ScaleDownRules(autoscalers=autoscalers, **defaults)
    return change_for_sleep("Deployment", workload, made, _NIGHT)


def test_a_workload_is_scaled_to_zero_and_remembers_its_replicas_in_the_same_write() -> None:
    change = _sleep(_workload(3))
    assert change is not None
    assert change.patch == {
        "metadata": {"labels": _SCALED, "annotations": {labels.REPLICAS_BEFORE_SLEEP: "3"}},
        "spec": {"replicas": 0},
    }
    absent = _sleep(_workload(None))
    assert absent is not None
    assert absent.patch is not None
    assert absent.patch["metadata"]["annotations"] == {labels.REPLICAS_BEFORE_SLEEP: "1"}


def test_replicas_are_restored_and_their_record_removed_in_one_write() -> None:
    asleep = _workload(0, labels=_SCALED, annotations={labels.REPLICAS_BEFORE_SLEEP: "3"})
    change = change_for_waking(asleep, {}, _MORNING)
    assert change is not None
    assert change.patch is not None
    assert change.patch["spec"] == {"replicas": 3}
    assert change_for_waking(_workload(0), {}, _MORNING) is None, "its own choice"
    assert _sleep(_workload(0)) is None, "nothing to remember"


def test_a_workload_that_a_user_scales_at_night_is_left_alone_then_and_in_the_morning() -> None:
    up = _workload(2, "kubectl", labels=_SCALED, annotations={labels.REPLICAS_BEFORE_SLEEP: "3"})
    night = _sleep(up)
    assert night == ReplicasChange("kubectl scaled to 2 while asleep; left alone until NodePools wake up")
    morning = change_for_waking(up, {}, _MORNING)
    assert morning is not None
    assert morning.patch is not None
    assert "spec" not in morning.patch
    assert _sleep(_workload(2, creation_timestamp=_NIGHT + timedelta(hours=1))) is None, "created at night"


@pytest.mark.parametrize(
    ("workload", "autoscalers", "said"),
    [
        (_workload(3, "argocd-controller"), (), "argocd-controller sets its replicas"),
        (_workload(3, "kustomize-controller"), (), "kustomize-controller sets its replicas"),
        (
            _workload(3, template={labels.DO_NOT_DISRUPT: "true"}),
            (),
            f"its pods have annotation {labels.DO_NOT_DISRUPT}",
        ),
        (_workload(3), (_autoscaler(0),), "HorizontalPodAutoscaler web scales from 0"),
        (_workload(3, annotations={"downscaler/downtime-replicas": "1"}), (_autoscaler(2),), "would undo 1 replica;"),
        (_workload(3, annotations={"downscaler/exclude": "true"}), (), "annotation downscaler/exclude"),
    ],
)
def test_a_conflict_is_reported_and_the_other_value_stays(
    workload: ScalableWorkload, autoscalers: tuple[HorizontalPodAutoscaler, ...], said: str
) -> None:
    change = _sleep(workload, *autoscalers)
    assert change is not None
    assert change.patch is None
    assert said in change.message


def test_what_is_no_conflict_is_scaled() -> None:
    """An autoscaler rests at 0 replicas; others' autoscalers and managers of other fields do not count."""
    helm = _workload(3, "helm")
    for change in (
        _sleep(helm, _autoscaler(2)),
        _sleep(_workload(3), _autoscaler(0, "StatefulSet")),
        _sleep(_workload(3, template={labels.DO_NOT_DISRUPT: "true"}), spares_do_not_disrupt=False),
    ):
        assert change is not None
        assert change.patch is not None


@pytest.mark.parametrize(
    ("annotations", "kept_up_by"),
    [
        ({"exclude": "true"}, "exclude"),
        ({"exclude": "false"}, ""),
        ({"exclude-until": "2026-10-07"}, "exclude-until"),
        ({"exclude-until": "2026-10-06 20:00"}, ""),
        ({"force-uptime": "true"}, "force-uptime"),
        ({"uptime": "Mon-Fri 07:30-23:30 Europe/Berlin"}, "uptime"),
        ({"uptime": "Mon-Fri 07:30-20:30 Europe/Berlin"}, ""),
        ({"uptime": "Sat-Sun 00:00-24:00 UTC, Tue 20:00-22:00 UTC"}, "uptime"),
        ({"uptime": "always"}, "uptime"),
        ({"uptime": "2026-10-06T20:00:00Z-2026-10-06T22:00:00Z"}, "uptime"),
        ({"downtime": "Mon-Fri 23:30-24:00 Europe/Berlin"}, "downtime"),
        ({"uptime": "always", "force-downtime": "true"}, ""),
        ({"uptime": "always", "force-downtime": "false"}, "uptime"),
        ({"force-uptime": "true", "force-downtime": "true"}, "force-uptime"),
        ({"exclude": "true", "force-downtime": "true"}, "exclude"),
        ({"uptime": "whenever"}, ""),
        ({"uptime": "Mon-Fri 07:30-20:30 Europe/Nowhere"}, ""),
        ({"uptime": "Foo-Bar 07:30-20:30 UTC"}, ""),
    ],
)
def test_annotations_of_kube_downscaler_keep_a_workload_up(annotations: dict[str, str], kept_up_by: str) -> None:
    prefixed = {f"downscaler/{name}": value for name, value in annotations.items()}
    expected = f"downscaler/{kept_up_by}" if kept_up_by else ""
    assert DownscalerAnnotations(prefixed, {}).keeps_up(_NIGHT) == expected
    assert DownscalerAnnotations({}, prefixed).keeps_up(_NIGHT) == expected, "of the namespace"
    assert DownscalerAnnotations({"downscaler/exclude": "false"}, {"downscaler/exclude": "true"}).keeps_up(_NIGHT) == ""


def test_a_workload_that_kube_downscaler_left_behind_comes_back_when_its_uptime_begins() -> None:
    left = {"downscaler/original-replicas": "4", "downscaler/uptime": "Mon-Fri 09:00-20:00 Europe/Berlin"}
    workload = _workload(0, annotations=left)
    assert change_for_waking(workload, {}, _MORNING) is None, "08:00 there"
    change = change_for_waking(workload, {}, _MORNING + timedelta(hours=1))
    assert change is not None
    assert change.patch is not None
    assert change.patch["spec"] == {"replicas": 4}
    assert change.patch["metadata"]["annotations"]["downscaler/original-replicas"] is None


@pytest.mark.parametrize(
    ("force", "comes_back"),
    [
        ({"downscaler/force-downtime": "true"}, False),
        ({"downscaler/force-downtime": "2026-10-06T20:00:00Z-2026-10-06T22:00:00Z"}, True),
        ({"downscaler/force-downtime": "true", "downscaler/force-uptime": "true"}, True),
    ],
)
def test_a_workload_with_a_forced_downtime_comes_back_when_that_ends(force: dict[str, str], comes_back: bool) -> None:
    workload = _workload(0, annotations={"downscaler/original-replicas": "4", **force})
    assert (change_for_waking(workload, {}, _MORNING) is not None) == comes_back


def test_the_owners_of_fields_are_read_from_what_an_api_server_sends() -> None:
    body = {
        "metadata": {
            "name": "web",
            "managedFields": [
                {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:template": {}}}},
                {"manager": "argocd-controller", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
            ],
        },
        "spec": {"replicas": 2, "template": {"metadata": {}, "spec": {"containers": []}}},
    }
    change = _sleep(SCALABLE_DEPLOYMENT.decode(msgspec.json.encode(body)))
    assert change is not None
    assert change.message.startswith("not scaled down: argocd-controller")
