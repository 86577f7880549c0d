"""Wire objects: what is decoded, what is tolerated, what is written."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from karpenter.api import core, kinds, scheduling_constraints
from karpenter.api.karpenter import Disruption
from karpenter.api.kinds import KINDS, NODE, NODE_CLAIM, NODE_POOL, POD, Kind
from karpenter.api.meta import Condition, ObjectMeta, Wire

REFERENCE = {"group": "g", "kind": "k", "name": "n"}
SPECS = {
    "NodePool": {"template": {"spec": {"requirements": [], "nodeClassRef": REFERENCE}}},
    "NodeOverlay": {"requirements": []},
    "CapacityBuffer": {},
    "CapacitySchedule": {"nodePools": {"names": ["dev"]}},
    "MachineNodeClass": {"power": "ipmi"},
    "NodeClaim": {"requirements": [], "nodeClassRef": REFERENCE},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_kind_survives_encoding_and_says_what_it_is(kind: Kind[Wire]) -> None:
    body = {"metadata": {"name": "x", "labels": {"a": "b"}, "generation": 3}}
    if kind.name in SPECS:
        body["spec"] = SPECS[kind.name]
    decoded = kind.decode(msgspec.json.encode(body))
    encoded = kind.encode(decoded)
    assert kind.decode(encoded) == decoded
    written = msgspec.json.decode(encoded)
    assert (written["apiVersion"], written["kind"]) == (kind.api_version, kind.name)
    assert written["metadata"] == body["metadata"]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_explicit_nulls_are_absent_fields(kind: Kind[Wire]) -> None:
    """API-020"""
    nulls = {
        "labels": None,
        "annotations": None,
        "finalizers": None,
        "ownerReferences": None,
        "creationTimestamp": None,
    }
    spec = SPECS.get(kind.name)
    body = {"metadata": {"name": "x", **nulls}, "spec": spec, "status": None}
    plain = {"metadata": {"name": "x"}} | ({} if spec is None else {"spec": spec})
    assert kind.decode(msgspec.json.encode(body)) == kind.decode(msgspec.json.encode(plain))


def test_nulls_deep_inside_a_pod_are_absent_fields() -> None:
    body = {
        "metadata": {"name": "p"},
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": None}, "ports": None}],
            "tolerations": [{"key": None, "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}},
            "nodeSelector": None,
        },
        "status": {"conditions": [{"type": "Ready", "status": "True", "message": None, "lastTransitionTime": None}]},
    }
    pod = POD.decode(msgspec.json.encode(body))
    assert pod.spec.tolerations == (scheduling_constraints.Toleration(operator="Exists"),)
    assert pod.spec.containers == (core.Container(name="c"),)
    assert pod.status.conditions == (Condition(type="Ready", status="True"),)


def test_a_null_in_a_list_is_an_error_that_names_its_place() -> None:
    """API-020"""
    with pytest.raises(msgspec.ValidationError, match=r"spec\.tolerations"):
        POD.decode(b'{"spec":{"tolerations":[null]}}')


def test_unknown_fields_are_skipped() -> None:
    pod = POD.decode(b'{"apiVersion":"v1","kind":"Pod","metadata":{"managedFields":[{}]},"spec":{"dnsPolicy":"x"}}')
    assert pod == core.Pod()


def test_quantities_keep_the_form_they_were_written_in() -> None:
    body = b'{"status":{"capacity":{"cpu":4,"memory":"8Gi","x":0.5,"big":123456789012345678901234567890}}}'
    capacity = NODE.decode(body).status.capacity
    assert capacity == {"cpu": 4, "memory": "8Gi", "x": 0.5, "big": 123456789012345678901234567890}


@pytest.mark.parametrize("text", ["2025-01-31T12:00:00Z", "2025-01-31T12:00:00.123456Z", "2025-01-31T13:00:00+01:00"])
def test_times_are_read_with_their_zone(text: str) -> None:
    body = msgspec.json.encode({"metadata": {"creationTimestamp": text}})
    creation_timestamp = POD.decode(body).metadata.creation_timestamp
    assert creation_timestamp is not None
    assert creation_timestamp.replace(microsecond=0) == datetime(2025, 1, 31, 12, tzinfo=UTC)


def test_an_empty_message_of_a_condition_is_written() -> None:
    """Schemas installed by others require the field."""
    written = msgspec.json.decode(msgspec.json.encode(Condition(type="Ready", status="True")))
    assert written == {"type": "Ready", "status": "True", "message": ""}


def test_a_pool_without_a_disruption_block_has_its_defaults() -> None:
    """API-S001"""
    spec = NODE_POOL.decode(msgspec.json.encode({"spec": SPECS["NodePool"]})).spec
    assert spec.disruption == Disruption()
    assert (spec.disruption.consolidate_after, spec.disruption.budgets[0].nodes) == ("0s", "10%")
    assert spec.template.spec.expire_after == "720h"


def test_broken_json_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        POD.decode(b'{"metadata":')


@pytest.mark.parametrize(
    ("kind", "arguments", "path"),
    [
        (POD, ("ns", "p"), "/api/v1/namespaces/ns/pods/p"),
        (POD, (), "/api/v1/pods"),
        (POD, ("ns", "p", "eviction"), "/api/v1/namespaces/ns/pods/p/eviction"),
        (NODE, ("", "n", "status"), "/api/v1/nodes/n/status"),
        (NODE_CLAIM, ("", "c"), "/apis/karpenter.sh/v1/nodeclaims/c"),
    ],
)
def test_paths_are_those_of_the_api(kind: Kind[Wire], arguments: tuple[str, ...], path: str) -> None:
    assert kind.path(*arguments) == path


def test_metadata_is_written_without_what_it_lacks() -> None:
    assert kinds.NAMESPACE.encode(core.Namespace()) == b'{"apiVersion":"v1","kind":"Namespace"}'
    named = core.Namespace(metadata=ObjectMeta(name="a"))
    assert kinds.NAMESPACE.encode(named) == b'{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a"}}'


def test_fields_kept_undecoded_survive_beside_nulls() -> None:
    definition = kinds.CUSTOM_RESOURCE_DEFINITION.decode(b'{"metadata":{"name":"a","labels":null},"spec":{"x":1}}')
    assert bytes(definition.spec) == b'{"x":1}'
