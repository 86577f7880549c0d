"""A controller beside a control plane, not in it: its conversion webhook has a URL instead of a Service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.harness import ApiError, ControlPlane, Json
from controlplane.ports import free_port
from karpenter.api import crds
from karpenter.olderversions.conversion_webhook import DEFINITIONS

_BETA = "/apis/karpenter.sh/v1beta1/nodepools"
_PROBE: Json = {
    "apiVersion": "karpenter.sh/v1beta1",
    "kind": "NodePool",
    "metadata": {"name": "probe"},
    "spec": {},
}


@contextmanager
def webhook_environment(plane: ControlPlane) -> Iterator[dict[str, str]]:
    """Environment of such a controller; afterwards the definitions name the Service again, as other tests apply them."""
    port = free_port()
    try:
        yield {"WEBHOOK_PORT": str(port), "WEBHOOK_URL": f"https://localhost:{port}"}
    finally:
        _name_the_service(plane)


def _name_the_service(plane: ControlPlane) -> None:
    """A URL beside a Service would be refused."""
    config = {"url": None, "caBundle": None, **crds.CONVERSION["webhook"]["clientConfig"]}
    patch: Json = {"spec": {"conversion": {"webhook": {"clientConfig": config}}}}
    for name in DEFINITIONS:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        plane.request("PATCH", path, patch, "application/merge-patch+json")


def await_webhook(plane: ControlPlane) -> None:
    """Wait until the API server asks it for ``v1beta1`` forms."""
    plane.until(lambda: _is_converted(plane), "the webhook to be asked")


def _is_converted(plane: ControlPlane) -> bool:
    try:
        plane.request("POST", f"{_BETA}?dryRun=All", _PROBE)
    except ApiError:
        return False
    return True
