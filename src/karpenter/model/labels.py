"""Label, annotation, taint and finalizer names, and which of them users may touch (API §§10-11)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from karpenter.api import label_domains
from karpenter.api.scheduling_constraints import Taint

GROUP = label_domains.CORE_DOMAIN
AWS_GROUP = label_domains.AWS_DOMAIN
KWOK_GROUP = label_domains.KWOK_DOMAIN

NODE_POOL = "karpenter.sh/nodepool"
CAPACITY_TYPE = "karpenter.sh/capacity-type"
REGISTERED = "karpenter.sh/registered"
INITIALIZED = "karpenter.sh/initialized"
DO_NOT_SYNC_TAINTS = "karpenter.sh/do-not-sync-taints"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
WINDOWS_BUILD = "node.kubernetes.io/windows-build"
ARCH = "kubernetes.io/arch"
OS = "kubernetes.io/os"
HOSTNAME = "kubernetes.io/hostname"
#: The label every namespace is given by the API server: its name.
NAMESPACE_NAME = "kubernetes.io/metadata.name"
EXCLUDE_FROM_LOAD_BALANCERS = "node.kubernetes.io/exclude-from-external-load-balancers"

SPOT = "spot"
ON_DEMAND = "on-demand"
RESERVED = "reserved"
#: Which reservation an offering, and in the end a node, belongs to.
RESERVATION_ID = "karpenter.k8s.aws/capacity-reservation-id"

DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
#: What ``kubectl apply`` was given last.
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
#: Annotations of Cluster Autoscaler: ``"false"`` on a pod, ``"true"`` on a Node.
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
SCALE_DOWN_DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
#: On a Node or a NodeClaim: ``"true"`` forbids node repair (K15-008).
DO_NOT_REPAIR = "karpenter.sh/do-not-repair"
#: On a NodeClaim that is rebooted: the boot ID of its Node before that, and how long the drain may take (K15-010, K15-011).
REBOOT_PRE_BOOT_ID = "karpenter.sh/reboot-pre-boot-id"
REBOOT_GRACE_PERIOD = "karpenter.sh/reboot-termination-grace-period"
NODE_POOL_HASH = "karpenter.sh/nodepool-hash"
NODE_POOL_HASH_VERSION = "karpenter.sh/nodepool-hash-version"
TERMINATION_TIMESTAMP = "karpenter.sh/nodeclaim-termination-timestamp"
MIN_VALUES_RELAXED = "karpenter.sh/nodeclaim-min-values-relaxed"
REQUESTED_DRA_DRIVERS = "karpenter.sh/requested-dra-drivers"
PRICE_OVERLAY = "karpenter.sh/price-overlay-applied"
CAPACITY_OVERLAY = "karpenter.sh/capacity-overlay-applied"
#: On a NodeClaim that is given back, and on those that take its place: the decision's identity. Ours, as the next two.
DISRUPTION_DECISION = "karpenter.sh/disruption-decision"
#: On a NodeClaim that is given back: the names of those that take its place.
DISRUPTION_REPLACEMENTS = "karpenter.sh/disruption-replacements"
#: On a NodeClaim that was created to take the place of others: their names.
DISRUPTION_REPLACES = "karpenter.sh/disruption-replaces"
#: On a static NodePool: the label over whose values its replicas are spread. Ours; only the zone is understood.
SPREAD_REPLICAS = "karpenter.sh/spread-replicas-over"

#: On a NodePool or a pod: how much of a workload, or of the pool's spot nodes, may be in one place; a share or ``off``. Ours.
EXPOSURE = "karpenter.sh/exposure"
#: On a NodePool: how much of one plan may be on one new node; a share or ``off``. Ours.
MAX_NODE_SHARE = "karpenter.sh/max-node-share"
#: On a NodePool, ours: time zones and dates of its disruption budgets (``budgets``).
BUDGET_WINDOWS = "karpenter.sh/budget-windows"
#: On a NodePool, ours: nothing of it is disrupted of our own will, for this reason, until this moment (``freezes``).
FREEZE = "karpenter.sh/freeze"
FREEZE_UNTIL = "karpenter.sh/freeze-until"
#: On a NodePool, ours: what a move has to be worth, and how old its nodes have to be (``consolidation_thresholds``).
MINIMUM_SAVING_RATIO = "karpenter.sh/minimum-saving-ratio"
MINIMUM_NODE_AGE = "karpenter.sh/minimum-node-age"
#: On a NodePool, ours: whether nodes on which a DaemonSet has no room are replaced as drifted ones are; ``true`` or ``false``.
REPLACE_FOR_DAEMON_SETS = "karpenter.sh/replace-for-daemonsets"
#: On a NodePool, a namespace or a pod, ours: the NodePool, or those that pods run on or wait for, stay awake until then.
KEEP_AWAKE_UNTIL = "karpenter.sh/keep-awake-until"
#: On a NodePool, ours: why, for people.
KEEP_AWAKE_REASON = "karpenter.sh/keep-awake-reason"
#: On a NodePool, ours: it sleeps until then, whatever schedules say.
ASLEEP_UNTIL = "karpenter.sh/asleep-until"
#: On a namespace, ours: the name of the CapacitySchedule that scales its workloads down.
CAPACITY_SCHEDULE = "karpenter.sh/capacity-schedule"
#: On a Deployment or StatefulSet, ours: a label while it is scaled down, and an annotation with the replicas to come back.
SCALED_DOWN = "karpenter.sh/scaled-down"
REPLICAS_BEFORE_SLEEP = "karpenter.sh/replicas-before-sleep"
#: On a pod, a PodGroup or a Workload, ours: the label in one domain of which all pods of the gang are to be.
GANG_TOPOLOGY = "karpenter.sh/gang-topology"
#: On a NodeClaim, ours: the gangs it was created for, separated by commas.
GANG = "karpenter.sh/gang"
#: On any object, ours: the rules of ``karpenter lint`` that do not count for it.
LINT_IGNORE = "karpenter.sh/lint-ignore"

#: Everything a NodePool may say in annotations.
POOL_SETTINGS = (
    SPREAD_REPLICAS,
    BUDGET_WINDOWS,
    FREEZE,
    FREEZE_UNTIL,
    MINIMUM_SAVING_RATIO,
    MINIMUM_NODE_AGE,
    EXPOSURE,
    REPLACE_FOR_DAEMON_SETS,
)

TERMINATION_FINALIZER = "karpenter.sh/termination"

UNREGISTERED_TAINT = Taint(key="karpenter.sh/unregistered", effect="NoExecute")
#: On nodes of a NodePool that sleeps, from the end of the grace period on.
ASLEEP_TAINT = Taint(key="karpenter.sh/asleep", effect="NoSchedule")
DISRUPTED_TAINT = Taint(key="karpenter.sh/disrupted", effect="NoSchedule")
#: What ``v1beta1`` had in its place (API-473); eks-node-viewer knows only this one (OPS-805).
OLDER_DISRUPTION_TAINT = Taint(key="karpenter.sh/disruption", value="disrupting", effect="NoSchedule")
#: On a Node that is about to be rebooted. Pods that tolerate it are drained all the same (K15-007).
REBOOTING_TAINT = Taint(key="karpenter.sh/rebooting", effect="NoSchedule")
NOT_READY_TAINT = "node.kubernetes.io/not-ready"
UNREACHABLE_TAINT = "node.kubernetes.io/unreachable"
#: On cordoned nodes.
UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"

#: Old or provider spellings and the key they stand for (API-425, SCH-143).
LABEL_ALIASES = {
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": REGION,
    "beta.kubernetes.io/arch": ARCH,
    "beta.kubernetes.io/os": OS,
    "beta.kubernetes.io/instance-type": INSTANCE_TYPE,
    "topology.ebs.csi.aws.com/zone": ZONE,
}

#: Labels a pod may ask for without any NodePool defining them (SCH-168).
CORE_WELL_KNOWN = frozenset({NODE_POOL, ZONE, REGION, INSTANCE_TYPE, ARCH, OS, CAPACITY_TYPE, WINDOWS_BUILD})
AWS_WELL_KNOWN = label_domains.AWS_KEYS | {"topology.k8s.aws/zone-id"}
KWOK_WELL_KNOWN = label_domains.KWOK_KEYS
#: The well-known labels of all providers together.
WELL_KNOWN = CORE_WELL_KNOWN | AWS_WELL_KNOWN | KWOK_WELL_KNOWN

#: Labels with a closed set of values (API-078).
CLOSED_LABEL_VALUES: Mapping[str, frozenset[str]] = {
    CAPACITY_TYPE: frozenset({SPOT, ON_DEMAND, RESERVED}),
    f"{AWS_GROUP}/instance-tenancy": frozenset({"default", "dedicated"}),
}

#: Longest value a label can have.
MAX_VALUE_LENGTH = 63

#: Keys that exist only inside the simulation and are never written to a NodeClaim (SCH-120).
SIMULATION_ONLY = frozenset({REGISTERED, INITIALIZED})

_RESTRICTED_DOMAINS = (GROUP, AWS_GROUP, KWOK_GROUP)
_NAME = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_LONGEST_SUBDOMAIN = 253


def normalise(key: str) -> str:
    """The stable spelling of a label key."""
    return LABEL_ALIASES.get(key, key)


def is_restricted(key: str, well_known: Iterable[str]) -> bool:
    """Whether users may not select or set this key (API-430): our own domains and the host name, unless well known."""
    if key in well_known or key == label_domains.PROVISIONER_NAME:
        return False
    domain = key.partition("/")[0] if "/" in key else ""
    return key == HOSTNAME or any(domain == own or domain.endswith("." + own) for own in _RESTRICTED_DOMAINS)


def is_dns_subdomain(text: str) -> bool:
    """Whether a text is a DNS subdomain, as object names and the domains of label keys are."""
    return len(text) <= _LONGEST_SUBDOMAIN and _SUBDOMAIN.fullmatch(text) is not None


def is_qualified_name(text: str) -> bool:
    """Whether a text is an optional DNS subdomain and slash, then a name of 1-63 characters (API-030, strict form)."""
    prefix, slash, name = text.rpartition("/")
    return (not slash or is_dns_subdomain(prefix)) and _NAME.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """Whether a text can be the value of a label: empty, or up to 63 letters, digits and ``-_.``, not at the ends."""
    return not text or _NAME.fullmatch(text) is not None
