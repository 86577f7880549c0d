"""The Services and owners of a pod, as kube-scheduler finds them for its default constraints (SCH-832)."""

from __future__ import annotations

import pytest

from karpenter.api.apps import SelectorWorkload
from karpenter.api.core import ReplicationController, Service
from karpenter.api.meta import LabelSelector
from karpenter.state.pod_counts import namespaced_labels
from karpenter.state.workload_selectors import DefaultSelectors, SelectorExpressions, WorkloadSelectorIndex
from support.builders import pod
from support.workload_selectors import (
    label_expression,
    label_values,
    owned_by,
    replication_controller,
    selector_workload,
    service,
)

WEB = LabelSelector(match_labels={"app": "web"}, match_expressions=(label_expression("tier", "NotIn", "back"),))


def index(*workloads: Service | SelectorWorkload | ReplicationController) -> WorkloadSelectorIndex:
    selector_index = WorkloadSelectorIndex()
    for obj in workloads:
        if isinstance(obj, Service):
            selector_index.set_service(obj)
        else:
            selector_index.set_owner(obj)
    return selector_index


def default_selector_of_pod(selector_index: WorkloadSelectorIndex, **meta: object) -> SelectorExpressions:
    """The selector of a pod with the labels app=web and rev=1."""
    own = {"labels": {"app": "web", "rev": "1"}, **meta}
    stored_pod = pod("p", meta=own)
    return DefaultSelectors(selector_index.snapshot()).default_selector(namespaced_labels(stored_pod), stored_pod)


@pytest.mark.parametrize(
    ("known", "meta", "expected"),
    [
        pytest.param(index(), {}, (), id="nobody-knows-it"),
        pytest.param(index(service("a", {"app": "web"})), {}, label_values(app="web"), id="a-service"),
        pytest.param(
            index(service("a", {"app": "web"}), service("b", {"rev": "1"})),
            {},
            label_values(app="web", rev="1"),
            id="two",
        ),
        pytest.param(index(service("a", {"app": "web", "rev": "2"})), {}, (), id="not-all-labels"),
        pytest.param(index(service("a", {"app": "web"}, "other")), {}, (), id="another-namespace"),
        pytest.param(index(service("a", None), service("b", {})), {}, (), id="no-selector-and-an-empty-one"),
        pytest.param(
            index(selector_workload("web", WEB)),
            {"owner_references": owned_by("web")},
            (label_expression("app", "In", "web"), label_expression("tier", "NotIn", "back")),
            id="a-replica-set",
        ),
        pytest.param(
            index(selector_workload("web", WEB), service("a", {"rev": "1"})),
            {"owner_references": owned_by("web", "StatefulSet")},
            (
                label_expression("app", "In", "web"),
                label_expression("rev", "In", "1"),
                label_expression("tier", "NotIn", "back"),
            ),
            id="a-stateful-set-and-a-service",
        ),
        pytest.param(
            index(replication_controller("web", {"rev": "2"}), service("a", {"app": "web", "rev": "1"})),
            {"owner_references": owned_by("web", "ReplicationController")},
            label_values(app="web", rev="2"),
            id="a-replication-controller-overwrites",
        ),
        pytest.param(
            index(selector_workload("web", WEB)),
            {"owner_references": owned_by("web", controller=False)},
            (),
            id="an-owner-that-does-not-control",
        ),
        pytest.param(
            index(service("a", {"app": "web"})),
            {"owner_references": owned_by("gone")},
            label_values(app="web"),
            id="unknown",
        ),
        pytest.param(
            index(selector_workload("web", WEB), service("a", {"app": "web"})),
            {"owner_references": owned_by("web", api_version="a/b/c")},
            label_values(app="web"),
            id="an-api-version-that-cannot-be-parsed",
        ),
        pytest.param(
            index(selector_workload("web", WEB), service("a", {"app": "web", "tier": "back"})),
            {"owner_references": owned_by("web"), "labels": {"app": "web", "tier": "back"}},
            (
                label_expression("app", "In", "web"),
                label_expression("tier", "In", "back"),
                label_expression("tier", "NotIn", "back"),
            ),
            id="a-replica-set-that-contradicts-a-service",
        ),
        pytest.param(
            index(selector_workload("web", None)),
            {"owner_references": owned_by("web")},
            (),
            id="owner-without-selector",
        ),
    ],
)
def test_a_selector_is_worked_out(
    known: WorkloadSelectorIndex, meta: dict[str, object], expected: SelectorExpressions
) -> None:
    """SCH-832, K15-103: only the controller counts; what is missing or cannot be parsed contributes nothing."""
    assert default_selector_of_pod(known, **meta) == expected


def test_the_order_of_events_does_not_show() -> None:
    a, b = service("a", {"app": "web"}), service("b", {"rev": "1"})
    assert default_selector_of_pod(index(a, b)) == default_selector_of_pod(index(b, a))


def test_a_picture_stays_as_it_was() -> None:
    selector_index = index(service("a", {"app": "web"}), selector_workload("web", WEB))
    before = selector_index.snapshot()
    selector_index.set_service(service("a", {"rev": "1"}))
    selector_index.remove_service(("default", "unknown"))
    selector_index.remove_owner("uid-web")
    assert (dict(before.services["default"]), set(before.owners)) == ({"a": {"app": "web"}}, {"uid-web"})
    after = selector_index.snapshot()
    assert (dict(after.services["default"]), set(after.owners)) == ({"a": {"rev": "1"}}, set())


def test_a_service_that_lost_its_selector_selects_no_pod() -> None:
    selector_index = index(service("a", {"app": "web"}))
    selector_index.set_service(service("a", None))
    assert default_selector_of_pod(selector_index) == ()


def test_an_owner_without_a_uid_owns_no_pod() -> None:
    """Such as a manifest: pods without a controller are not its own."""
    nameless = SelectorWorkload(spec=selector_workload("web", WEB).spec)
    assert default_selector_of_pod(index(nameless)) == ()
