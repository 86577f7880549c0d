"""What `deploy/` gives the controller, on a test control plane: its ServiceAccount, exactly its rights, and a token.

The token comes from the TokenRequest API and lies in a file, as in a pod; ``Account.renew`` replaces it there and makes the
old one worthless. Whoever installs the rights also learns, at the end, whether they were enough: a call that was forbidden
fails the test (OPS-660 ff., scenario H10).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from controlplane.audit import Call
from controlplane.harness import ControlPlane, Json
from karpenter.model import quantity

if TYPE_CHECKING:
    from karpenter.kube.client import KubeClient

DEPLOY = Path(__file__).parents[2] / "deploy"
NAMESPACE = "kube-system"
NAME = "karpenter"
USER = f"system:serviceaccount:{NAMESPACE}:{NAME}"
_LIFETIME_SECONDS = 3600


def manifests(*folders: str) -> list[Json]:
    """Every object of these folders of `deploy/`."""
    files = (file for folder in folders for file in sorted((DEPLOY / folder).glob("*.yaml")))
    documents = (document for file in files for document in yaml.load_all(file.read_text(), yaml.CSafeLoader))
    return [document for document in documents if document["kind"] != "Kustomization"]


def rights(provider: str = "simulated") -> list[Json]:
    """The ServiceAccount with what it may do, with instances of this provider."""
    return rights_among(manifests(provider))


def rights_among(objects: Iterable[Json]) -> list[Json]:
    """Those of the objects that give the controller rights, as of a rendered chart."""
    return [one for one in objects if one["kind"] in _RIGHTS and not _is_for_users(one)]


_RIGHTS = frozenset({"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"})


def _is_for_users(manifest: Json) -> bool:
    """Whether a role is aggregated to a built-in one."""
    labels: dict[str, str] = manifest["metadata"]["labels"]
    return any("/aggregate-to-" in label for label in labels)


def bindings_to(user: str) -> list[Json]:
    """Bindings of their own that give a user the controller's rights too, once those are installed."""
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    return [
        {**manifest, "metadata": {**manifest["metadata"], "name": f"{NAME}-{user}-{number}"}, "subjects": [subject]}
        for number, manifest in enumerate(rights())
        if "subjects" in manifest
    ]


def deployment() -> Json:
    """The Deployment."""
    (result,) = (manifest for manifest in manifests("simulated") if manifest["kind"] == "Deployment")
    return result


def container(of: Json | None = None) -> Json:
    """The controller's container in the pods of a Deployment, by default that of `deploy/`."""
    (result,) = (of or deployment())["spec"]["template"]["spec"]["containers"]
    return dict(result)


def environment(of: Json | None = None) -> dict[str, str]:
    """The environment of the container, with what Kubernetes fills in."""
    wanted = of or deployment()
    entries: list[Json] = container(wanted)["env"]
    return {str(entry["name"]): _filled_in(entry, wanted) for entry in entries}


def _filled_in(entry: Json, of: Json) -> str:
    if "value" in entry:
        return str(entry["value"])
    source: dict[str, dict[str, str]] = entry["valueFrom"]
    if "fieldRef" in source:
        return {"metadata.namespace": str(of["metadata"]["namespace"])}[source["fieldRef"]["fieldPath"]]
    wanted = source["resourceFieldRef"]
    kind, name = wanted["resource"].split(".")
    amount = container(of)["resources"][kind][name]
    return str(quantity.parse_milli(str(amount)) // quantity.parse_milli(wanted["divisor"]))


@dataclass
class Account:
    """The controller's ServiceAccount on a control plane."""

    plane: ControlPlane
    namespace: str = NAMESPACE
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1), repr=False)
    _secret: str = ""
    _earlier: int = 0
    _overlooked: int = 0

    @property
    def token_file(self) -> Path:
        """Where the token lies."""
        return self.plane.folder / f"{NAME}.token"

    @property
    def kubeconfig(self) -> str:
        """Path of a kubeconfig that reads the token from its file."""
        return self.plane.kubeconfig_with(NAME, {"tokenFile": str(self.token_file)})

    def client(self) -> KubeClient:
        """A new client of the product with the controller's rights, to be closed by the caller (``async with``)."""
        from karpenter.kube import config

        return config.connect(config.load(self.kubeconfig))

    def renew(self) -> None:
        """Put a new token into the file, then revoke the one before: within seconds the server knows it no more."""
        old, self._secret = self._secret, f"{NAME}-token-{next(self._numbers)}"
        secret = {"apiVersion": "v1", "kind": "Secret", "name": self._secret}
        metadata = {"name": self._secret, "namespace": self.namespace}
        self.plane.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
        # Bound to an object, a token ends with it; in a pod it is bound to the pod.
        wanted = {"boundObjectRef": secret, "expirationSeconds": _LIFETIME_SECONDS}
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{NAME}/token"
        body: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": wanted}
        status: Json = self.plane.request("POST", path, body)["status"]
        self.token_file.write_text(str(status["token"]))
        if old:
            self.plane.request("DELETE", f"/api/v1/namespaces/{self.namespace}/secrets/{old}")

    def calls(self) -> list[Call]:
        """The calls made with this account since it was installed."""
        return self.plane.calls(f"system:serviceaccount:{self.namespace}:{NAME}")[self._earlier :]

    def check(self) -> None:
        """Raise ``AssertionError`` where a call was forbidden."""
        calls = self.calls()[self._overlooked :]
        refused = sorted({call.message or call.path for call in calls if call.is_refused})
        assert not refused, "deploy/ does not give the controller the right to what it did:\n" + "\n".join(refused)

    def overlook_a_restart(self) -> None:
        """Wait until a server that was started again knows the rights; what it refused until then counts no more."""
        await_rights(self.plane)
        self._overlooked = len(self.calls())


@contextmanager
def installed(plane: ControlPlane, provider: str = "simulated") -> Iterator[Account]:
    """The controller's ServiceAccount with a token and its rights; at the end it must not have been forbidden anything.

    What it was forbidden before, on a control plane that several tests share, was for those to judge.
    """
    with granted(plane, rights(provider)) as account:
        yield account


@contextmanager
def granted(plane: ControlPlane, objects: list[Json]) -> Iterator[Account]:
    """The ServiceAccount among these objects with their rights, as ``installed``."""
    plane.apply(*objects)
    account = Account(plane, _earlier=len(plane.calls(USER)))
    account.renew()
    _await_in_force(plane, objects)
    yield account
    account.check()


def await_rights(plane: ControlPlane, provider: str = "simulated") -> None:
    """Wait until the installed rights are in force."""
    _await_in_force(plane, rights(provider))


def _await_in_force(plane: ControlPlane, objects: list[Json]) -> None:
    roles = [right for right in objects if "rules" in right]
    plane.until(lambda: all(_is_granted(plane, role) for role in roles), "the rights to be in force")


def _is_granted(plane: ControlPlane, role: Json) -> bool:
    """Whether the authorizer already applies a role and its binding."""
    rules: list[dict[str, list[str]]] = role["rules"]
    rule = rules[0]
    group, (resource, _, subresource) = rule["apiGroups"][0], rule["resources"][0].partition("/")
    wanted = {
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "verb": rule["verbs"][0],
        "name": rule.get("resourceNames", [""])[0],
        "namespace": role["metadata"].get("namespace", ""),
    }
    return allowed(plane, USER, wanted)


def allowed(plane: ControlPlane, user: str, wanted: Mapping[str, str]) -> bool:
    """Whether the API server would let a user do something (attributes of a SubjectAccessReview)."""
    review: Json = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": dict(wanted)},
    }
    status: Json = plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]
    return status["allowed"] is True
