"""Cleans up a control plane that several test files share: workloads, instances, our kinds, and rights.

A controller acts on the whole cluster, so two tests never share one at the same time. One after the other they do: emptying takes
a second, starting a control plane five.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from controlplane.harness import ApiError, ControlPlane, Json
from karpenter.api import crds, kinds
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.olderversions.conversion_webhook import CERTIFICATE_SECRET

_MERGE: Final = "application/merge-patch+json"
_AT_ONCE: Final[Json] = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
#: Owners before what they own, or a workload controller makes it anew.
_KINDS: Final[tuple[Kind[Wire], ...]] = (
    kinds.POD_DISRUPTION_BUDGET,
    kinds.DEPLOYMENT,
    kinds.STATEFUL_SET,
    kinds.DAEMON_SET,
    kinds.REPLICA_SET,
    kinds.CAPACITY_BUFFER,
    kinds.CAPACITY_SCHEDULE,
    kinds.NODE_OVERLAY,
    kinds.NODE_POOL,
    kinds.NODE_CLAIM,
    kinds.NODE,
    kinds.POD,
    kinds.VOLUME_ATTACHMENT,
    kinds.PERSISTENT_VOLUME_CLAIM,
    kinds.PERSISTENT_VOLUME,
    kinds.KWOK_NODE_CLASS,
    kinds.EC2_NODE_CLASS,
)
_SYSTEM: Final = "kube-system"
_ROOTS: Final = ("/apis/batch/v1/jobs", *(kind.path() for kind in _KINDS), kinds.LEASE.path("kube-node-lease"))
#: Others keep objects here too: only those that are called after us go, and records of instances.
_SHARED: Final = (kinds.LEASE.path(_SYSTEM), kinds.CONFIG_MAP.path(_SYSTEM))
#: The webhook's; the Secrets with the tokens of ServiceAccounts stay.
_CERTIFICATE: Final = kinds.SECRET.path(_SYSTEM, CERTIFICATE_SECRET)
_RECORDS: Final = "?labelSelector=karpenter.kwok.sh%2Finstance"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
#: Roles that the API server makes itself have this label, and stay.
_NOT_BUILT_IN: Final = "?labelSelector=!kubernetes.io%2Fbootstrapping"
#: The chart labels what it installs.
_OF_THE_CHART: Final = "?labelSelector=app.kubernetes.io%2Fname%3Dkarpenter"


def empty(plane: ControlPlane) -> None:
    """Delete what tests and controllers created, finalizers included. Rights and definitions stay."""
    plane.until(lambda: _is_empty(plane), "the cluster to be empty")
    _delete_all(plane, kinds.EVENT.path())


def forget_rights(plane: ControlPlane) -> None:
    """Delete all roles and bindings that tests have applied, and the account and service of an installation.

    Helm does not take over an account that another test applied.
    """
    for kind in ("clusterrolebindings", "clusterroles", "rolebindings", "roles"):
        _delete_all(plane, f"{_RBAC}/{kind}", _NOT_BUILT_IN)
    for kind in ("serviceaccounts", "services"):
        _delete_all(plane, f"/api/v1/{kind}", _OF_THE_CHART)


def forget_definitions(plane: ControlPlane) -> None:
    """Delete our CustomResourceDefinitions; returns when none of their kinds is served any more."""
    empty(plane)
    names = [
        str(custom_resource_definition["metadata"]["name"])
        for custom_resource_definition in crds.custom_resource_definitions()
    ]
    paths = [kinds.CUSTOM_RESOURCE_DEFINITION.path(name=name) for name in names]
    for path in paths:
        _delete(plane, path)
    # A definition that is applied while its deletion goes on is deleted in the end; Helm then waits for it in vain.
    plane.until(lambda: not any(_exists(plane, path) for path in paths), "our definitions to be gone")
    served = (kinds.NODE_POOL, kinds.NODE_CLAIM, kinds.KWOK_NODE_CLASS)
    plane.until(lambda: not any(_exists(plane, kind.path()) for kind in served), "our kinds to be gone")


def _is_empty(plane: ControlPlane) -> bool:
    """Delete what is left; whether nothing was left."""
    left = [_delete_all(plane, root) for root in _ROOTS]
    left.append(_delete_all(plane, kinds.CONFIG_MAP.path(_SYSTEM), _RECORDS))
    named = [path for root in _SHARED for path, _ in _items(plane, root) if "karpenter" in path.rpartition("/")[2]]
    if _exists(plane, _CERTIFICATE):
        named.append(_CERTIFICATE)
    for path in named:
        _delete(plane, path)
    return not any(left) and not named


def _delete_all(plane: ControlPlane, root: str, query: str = "") -> int:
    """Delete the objects of a collection, in all namespaces; how many there were."""
    targets = list(_items(plane, root, query))
    for collection in {path.rpartition("/")[0] for path, _ in targets}:
        _delete(plane, collection + query)
    for path in (path for path, is_held in targets if is_held):
        _unless_gone(plane, "PATCH", path, {"metadata": {"finalizers": None}}, _MERGE)
    return len(targets)


def _items(plane: ControlPlane, root: str, query: str = "") -> Iterator[tuple[str, bool]]:
    """Paths of the objects of a collection, and whether finalizers hold them."""
    prefix, _, plural = root.rpartition("/")
    for element in _listed(plane, root + query):
        metadata: Json = element["metadata"]
        place = "" if "/namespaces/" in root or "namespace" not in metadata else f"/namespaces/{metadata['namespace']}"
        yield f"{prefix}{place}/{plural}/{metadata['name']}", bool(metadata.get("finalizers"))


def _listed(plane: ControlPlane, path: str) -> list[Json]:
    """The objects of a collection; none of a kind that is not defined here. One that was defined just now is waited for."""
    answers: list[list[Json]] = []
    plane.until(lambda: _is_listed(plane, path, answers), f"{path} to be served")
    return answers[0]


def _is_listed(plane: ControlPlane, path: str, answers: list[list[Json]]) -> bool:
    try:
        answers.append(plane.request("GET", path)["items"])
    except ApiError as error:
        if error.status == 429:
            return False
        if error.status != 404:
            raise
        answers.append([])
    return True


def _delete(plane: ControlPlane, path: str) -> None:
    _unless_gone(plane, "DELETE", path, _AT_ONCE, "application/json")


def _unless_gone(plane: ControlPlane, method: str, path: str, body: Json, content: str) -> None:
    try:
        plane.request(method, path, body, content)
    except ApiError as error:
        if error.status != 404:
            raise


def _exists(plane: ControlPlane, path: str) -> bool:
    try:
        plane.request("GET", f"{path}?limit=1")
    except ApiError:
        return False
    return True
