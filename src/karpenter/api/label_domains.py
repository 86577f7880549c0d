"""Our own label domains, and the keys in them that users may set or ask for (API-428 ff.).

These are facts of the API, so they sit below everything that uses them: the CRDs refuse other keys of these domains at
admission, ``model.labels`` builds its well-known labels from them.
"""

from __future__ import annotations

from collections.abc import Mapping

CORE_DOMAIN = "karpenter.sh"
AWS_DOMAIN = "karpenter.k8s.aws"
KWOK_DOMAIN = "karpenter.kwok.sh"

#: What releases before 0.32 called the NodePool of a node. Nodes of Provisioners still carry it (API-855).
PROVISIONER_NAME = f"{CORE_DOMAIN}/provisioner-name"

_AWS_INSTANCE = (
    "hypervisor encryption-in-transit-supported category capability-flex family generation size local-nvme cpu "
    "cpu-manufacturer cpu-sustained-clock-speed-mhz memory ebs-bandwidth network-bandwidth gpu-name gpu-manufacturer "
    "gpu-count gpu-memory accelerator-name accelerator-manufacturer accelerator-count tenancy"
)
_AWS_OTHER = (
    "capacity-reservation-id capacity-reservation-type capacity-reservation-interruptible "
    "placement-group-id placement-group-partition"
)

#: Keys of the AWS domain that describe instances.
AWS_KEYS = frozenset(
    {f"{AWS_DOMAIN}/instance-{name}" for name in _AWS_INSTANCE.split()}
    | {f"{AWS_DOMAIN}/{name}" for name in _AWS_OTHER.split()}
)
#: Keys of the simulation's domain that describe instances.
KWOK_KEYS = frozenset(f"{KWOK_DOMAIN}/instance-{name}" for name in ("size", "family", "cpu", "memory"))

#: Per domain, the keys admission lets through (API-431, API-432). The node-class labels are refused later, by runtime
#: validation (API-435): admission is never stricter than users know it.
ADMITTED_LABELS: Mapping[str, frozenset[str]] = {
    CORE_DOMAIN: frozenset({f"{CORE_DOMAIN}/capacity-type", f"{CORE_DOMAIN}/nodepool", PROVISIONER_NAME}),
    AWS_DOMAIN: AWS_KEYS | {f"{AWS_DOMAIN}/ec2nodeclass"},
    KWOK_DOMAIN: KWOK_KEYS | {f"{KWOK_DOMAIN}/kwoknodeclass"},
}
_PREFIXES_NOT_IN_OVERLAYS = ("instance-tenancy", "capacity-reservation-", "placement-group-")
#: The same for NodeOverlays: not what a launch decides (API-434).
LABELS_ADMITTED_IN_OVERLAYS: Mapping[str, frozenset[str]] = {
    domain: frozenset(key for key in keys if not key.partition("/")[2].startswith(_PREFIXES_NOT_IN_OVERLAYS))
    for domain, keys in ADMITTED_LABELS.items()
}
