"""Kinds in manifests that are probably not meant: misspelt ones, those in a wrong group, those of older releases."""

from __future__ import annotations

import difflib

from karpenter.api.kinds import KINDS, Kind
from karpenter.api.meta import Wire
from karpenter.model.structural_schema import Finding

_CONVERT = "translate it with karpenter convert"
#: Kinds of older releases of Karpenter with what to do.
_OLD_KINDS = {
    "Provisioner": f"is a NodePool now; {_CONVERT}",
    "AWSNodeTemplate": f"is an EC2NodeClass now; {_CONVERT}",
    "Machine": "is a NodeClaim now: leave it out, the controller creates NodeClaims itself",
}
_KARPENTER_GROUPS = frozenset({"karpenter.sh", "karpenter.k8s.aws"})
#: Groups in which Kubernetes and Karpenter have or had kinds of ours.
_KNOWN_GROUPS = _KARPENTER_GROUPS | {
    "",
    "apps",
    "extensions",
    "batch",
    "policy",
    "autoscaling",
    "storage.k8s.io",
    "scheduling.k8s.io",
    "karpenter.kwok.sh",
}
#: Other kinds of those groups: not misspelt ones of ours.
_OTHER_KINDS = frozenset(
    {
        *(
            "Binding",
            "ComponentStatus",
            "ControllerRevision",
            "CSIDriver",
            "CSIStorageCapacity",
            "Endpoints",
            "Eviction",
        ),
        *("Ingress", "List", "NetworkPolicy", "PodSecurityPolicy", "ResourceQuota", "Scale", "Secret"),
        *("ServiceAccount", "VolumeAttributesClass"),
    }
)
_KINDS_BY_NAME = {kind.name: kind for kind in KINDS.values()}
_MIN_SIMILARITY = 0.75


def misfit(api_version: str, kind_name: str) -> Finding | None:
    """What is wrong with the kind of an object that no plan reads; None where it is merely of no use."""
    if not kind_name:
        return Finding("kind", "required", "is missing; expected a Kubernetes object with apiVersion and kind")
    if not api_version:
        return Finding("apiVersion", "required", f"is missing; expected the API version of {kind_name}")
    group = api_version.rpartition("/")[0]
    if kind_name in _OLD_KINDS and group in _KARPENTER_GROUPS:
        from karpenter.conversion.manifests import unserved_version

        unserved = unserved_version(api_version, kind_name)
        if unserved is not None:
            return Finding("apiVersion", "version", unserved)
        return Finding("kind", "old", f"{kind_name} of {api_version} {_OLD_KINDS[kind_name]}")
    if group == "kustomize.config.k8s.io":
        return Finding("kind", "kustomize", "is no object of a cluster; render it first: kubectl kustomize DIRECTORY")
    kind = _KINDS_BY_NAME.get(kind_name)
    return _misspelt(api_version, group, kind_name) if kind is None else _wrong_version(api_version, group, kind)


def _wrong_version(api_version: str, group: str, kind: Kind[Wire]) -> Finding | None:
    """A kind of this name in another version or group. The groups of others may have kinds of the same name."""
    if api_version == kind.api_version or (group != kind.group and not _is_like_known_group(group)):
        return None
    text = f"{api_version} is not supported; expected {kind.api_version}"
    from karpenter.conversion.manifests import OLDER_KINDS

    if (api_version, kind.name) in OLDER_KINDS:
        text += f"; {_CONVERT}"
    return Finding("apiVersion", "version", text)


def _misspelt(api_version: str, group: str, kind_name: str) -> Finding | None:
    if kind_name in _OTHER_KINDS or not _is_like_known_group(group):
        return None
    by_lower = {name.lower(): name for name in (*_KINDS_BY_NAME, *_OTHER_KINDS)}
    near = difflib.get_close_matches(kind_name.lower(), by_lower, n=1, cutoff=_MIN_SIMILARITY)
    if not near:
        return None
    return Finding("kind", "unknown", f"{api_version} has no {kind_name}; did you mean {by_lower[near[0]]}?")


def _is_like_known_group(group: str) -> bool:
    return group in _KNOWN_GROUPS or bool(difflib.get_close_matches(group, _KNOWN_GROUPS, n=1, cutoff=_MIN_SIMILARITY))
