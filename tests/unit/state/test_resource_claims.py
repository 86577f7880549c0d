"""Resource claims as older API versions write them, and what they mean for a pod."""

from __future__ import annotations

from karpenter.api.kinds import RESOURCE_CLAIM, RESOURCE_SLICE
from karpenter.api.resource_claims import DeviceConstraint
from karpenter.state.claim_validation import InvalidClaim, claimed_devices
from karpenter.state.cluster_devices import ClusterDevices, LeavingPods
from karpenter.state.device_demands import ClaimedDevices, SharedClaim
from support.device_builders import (
    DRIVER,
    alternative,
    claim_spec,
    device_class,
    exactly,
    first_available,
    of_template,
    resource_claim,
    same,
    using,
)

CLASSES = {"gpu": device_class()}


def test_claims_of_v1beta1_are_read_as_those_of_v1() -> None:
    """Requests had no ``exactly``, devices were below ``basic``."""
    older = RESOURCE_CLAIM.decode(
        b'{"metadata":{"name":"c"},"spec":{"devices":{"requests":[{"name":"r","deviceClassName":"gpu","count":2}]}}}'
    )
    newer = resource_claim("c", exactly("r", 2))
    assert claimed_devices("c", older.spec, CLASSES) == claimed_devices("c", newer.spec, CLASSES)
    (device,) = RESOURCE_SLICE.decode(
        b'{"metadata":{"name":"s"},"spec":{"driver":"d","devices":[{"name":"x","basic":{"attributes":{"a":{"int":1}}}}]}}'
    ).spec.devices
    assert device.flat.attributes["a"].int_ == 1


def test_devices_record_the_request_that_owns_them() -> None:
    """K15-142, K15-140: ``<request>``, or ``<request>/<sub-request>`` of one of several alternatives."""
    spec = claim_spec(exactly("a"), first_available("b", alternative("x"), alternative("y")))
    devices = claimed_devices("c", spec, CLASSES)
    assert isinstance(devices, ClaimedDevices)
    assert [[each.name for each in request.alternatives] for request in devices.requests] == [["a"], ["b/x", "b/y"]]


def test_a_constraint_names_a_request_with_all_its_alternatives_or_one_of_them() -> None:
    """K15-143: the parent's name spans all alternatives; an empty list covers all requests."""
    spec = claim_spec(
        exactly("a"),
        first_available("b", alternative("x"), alternative("y")),
        constraints=[same("link", "b"), same("link", "b/y"), same("link")],
    )
    devices = claimed_devices("c", spec, CLASSES)
    assert isinstance(devices, ClaimedDevices)
    alternatives = [each for request in devices.requests for each in request.alternatives]
    covered = [[each.name for each in alternatives if constraint.covers(each)] for constraint in devices.constraints]
    assert covered == [["b/x", "b/y"], ["b/y"], ["a", "b/x", "b/y"]]
    assert devices.constraints[0].attribute == f"{DRIVER}/link"


def test_a_request_of_neither_form_and_an_unknown_constraint_are_refused() -> None:
    """K15-144, K15-158."""
    refused = claimed_devices("c", claim_spec(first_available("r")), CLASSES)
    assert isinstance(refused, InvalidClaim)
    assert refused.error == (
        'validating claim "c": claim "c" request "r": only Exactly and FirstAvailable requests are supported'
    )
    refused = claimed_devices("c", claim_spec(exactly(), constraints=[DeviceConstraint()]), CLASSES)
    assert isinstance(refused, InvalidClaim)
    assert refused.error == 'validating claim "c": claim "c": unsupported constraint type'


def test_claims_of_a_pod_are_its_own_or_shared() -> None:
    """K15-150, K15-151: direct name, or generated name from pod status; one that is not allocated is searched for."""
    devices = ClusterDevices({("default", name): resource_claim(name, exactly()) for name in ("a", "b")}, {}, CLASSES)
    (own,) = devices.resolve(of_template("p", "t", made={"t": "a"}), LeavingPods()).demand.claims
    (shared,) = devices.resolve(using("q", "b"), LeavingPods()).demand.claims
    assert isinstance(own, ClaimedDevices)
    assert isinstance(shared, SharedClaim)
    assert shared.devices == own


def test_equal_demands_of_different_pods_are_one_object() -> None:
    """A thousand pods of one template are one group."""
    claims = {("default", name): resource_claim(name, exactly()) for name in ("a", "b")}
    devices = ClusterDevices(claims, {}, CLASSES)
    first = devices.resolve(of_template("p", "t", made={"t": "a"}), LeavingPods()).demand
    second = devices.resolve(of_template("q", "t", made={"t": "b"}), LeavingPods()).demand
    assert first is second
