"""Values that fields of our kinds get in random writes: usual ones, ones at the edge, and wrong ones."""

from __future__ import annotations

from collections.abc import Mapping

from support.admission_rows import CAPACITY, D, Json, T, built, req

TAINT: Json = {"key": "example.com/a", "value": "b", "effect": "NoSchedule"}
POOL: Json = {
    "spec.weight": 10,
    "spec.limits": {"cpu": "400", "nodes": 50},
    f"{D}.budgets": [{"nodes": "20%"}, {"nodes": "0", "reasons": ["Empty"], "schedule": "@daily", "duration": "1h"}],
    "spec.template.metadata.labels": {"team": "shop", CAPACITY: "spot"},
    "spec.template.metadata.annotations": {"shop.example/owner": "infra"},
    f"{T}.taints": [TAINT],
    f"{T}.startupTaints": [TAINT],
    f"{T}.terminationGracePeriod": "4h",
    f"{T}.requirements": [req("In", "a", "b", minValues=2), req("Gt", "5"), req("Exists", key=CAPACITY)],
}
CLAIM: Json = {
    "spec.requirements": [req("In", "a", "b"), req("Gte", "5"), req("In", "web", key="karpenter.sh/nodepool")],
    "spec.resources": {"requests": {"cpu": "2100m", "memory": 5}},
    "spec.taints": [TAINT],
    "spec.terminationGracePeriod": "4h0m0s",
}
OVERLAY: Json = {
    "spec.requirements": [req("In", "a", "b"), req("Gte", "5"), req("NotIn", "web", key="karpenter.sh/nodepool")],
    "spec.priceAdjustment": "-5%",
    "spec.capacity": {"example.com/gpu": 2},
    "spec.weight": 10,
}
BUFFER: Json = {
    "spec.scalableRef": {"kind": "Deployment", "name": "d", "apiGroup": "apps"},
    "spec.replicas": 3,
    "spec.percentage": 20,
    "spec.limits": {"cpu": 5},
}
EC2_CLASS: Json = {
    "spec.subnetSelectorTerms": [{"tags": {"a": "b"}}, {"id": "subnet-1"}],
    "spec.securityGroupSelectorTerms": [{"name": "n"}],
    "spec.capacityReservationSelectorTerms": [{"id": "cr-1"}, {"tags": {"a": "b"}, "ownerID": "1" * 12}],
    "spec.amiSelectorTerms": [{"id": "ami-1"}, {"name": "n", "owner": "self"}, {"ssmParameter": "/p"}],
    "spec.amiFamily": "AL2",
    "spec.placementGroupSelector": {"name": "near"},
    "spec.tags": {"team": "shop"},
    "spec.kubelet": {"maxPods": 58},
    "spec.blockDeviceMappings": [{"deviceName": "/dev/xvda", "rootVolume": True, "ebs": {"volumeSize": "20Gi"}}],
    "spec.networkInterfaces": [{"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"}],
    "spec.metadataOptions": {"httpTokens": "optional"},
    "spec.connectionTracking": {"udpTimeout": 45},
}
EC2_BASES = [built("EC2NodeClass", {}), built("EC2NodeClass", EC2_CLASS)]
DURATIONS = [
    "30s",
    "1h30m",
    "0s",
    "Never",
    "never",
    "1d",
    "-1s",
    "30",
    "",
    "1h1h",
    "2562048h",
    "1.5h",
    "30s\n",
    "8h0m0s",
]
NAMES = ["a", "a.b/c", "A", "a/b/c", "-a", "a b", "", "a" * 63, "a" * 317, "é", "???", "karpenter.sh/foo"]
KEYS = [
    "a",
    "example.com/a",
    "karpenter.sh",
    "karpenter.sh/nodepool",
    "karpenter.sh/nodepool",
    CAPACITY,
    "karpenter.sh/foo",
    "sub.karpenter.sh/x",
    "mykarpenter.sh/x",
    "karpenter.k8s.aws/instance-cpu",
    "karpenter.k8s.aws/instance-pods",
    "a.karpenter.k8s.aws/instance-cpu",
    "karpenter.kwok.sh/instance-size",
    "karpenter.kwok.sh/foo",
    "karpenter.kwok.sh/x/y",
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "/karpenter.sh",
    "spaces are not allowed",
]
BOUNDS = [
    "0",
    "5",
    "-1",
    "+5",
    "007",
    "1.5",
    " 1",
    "1 ",
    "",
    "a",
    "0x1",
    "1e3",
    "9223372036854775807",
    "9223372036854775808",
]
QUANTITIES = [
    1,
    -3,
    0,
    "1",
    "1.",
    ".5",
    "1Gi",
    "500m",
    "1e3",
    "1e1.5",
    "-1",
    "+1",
    "x",
    "",
    "1 Gi",
    1.0,
    0.5,
    2**63,
    "1Gi\n",
]
NODES = ["0", "10", "10%", "100%", "101%", "1000", "-1", "1.5%", "", "10%\n", 10]
SCHEDULES = [
    "@daily",
    "@Daily",
    "@dailyX",
    "* * * * *",
    "* * * *",
    "a b c d e",
    "*",
    "\v \v \v \v \v",
    "0\t9 * *\f1",
    "",
]
TIMES = [
    "2025-01-31T12:00:00Z",
    "2025-01-31t12:00:00.5+01:00",
    "2025-02-30T12:00:00Z",
    "2025-01-31T24:00:00Z",
    "2025-01-31T12:00:60Z",
    "2025-01-31 12:00:00Z",
    "2025-01-31T12:00:00",
    "2025-01-31",
    "noon",
]
COUNTS = [0, 1, 2, 3, 50, 51, 100, 101, -1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2.5, "5"]
TEXTS = ["", "a", "a" * 63, "a" * 64, "a" * 1025, "b-", "9a", "True", "In", "WhenEmpty", "Empty", "-", "/"]
JUNK: list[object] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**70,
    "",
    "é",
    "٣",
    [],
    {},
    [None],
    {"a": None},
    ["a", "a"],
    {"x": {"y": 1}},
]
RESOURCES = ["cpu", "memory", "nodes", "example.com/gpu"]
#: By name of the field; what is not named here is chosen by type.
BY_NAME: Mapping[str, list[object]] = {
    "consolidateAfter": list(DURATIONS),
    "expireAfter": list(DURATIONS),
    "terminationGracePeriod": list(DURATIONS),
    "nodeRegistrationDelay": list(DURATIONS),
    "duration": list(DURATIONS),
    "schedule": list(SCHEDULES),
    "key": [*NAMES, *KEYS],
    "group": ["karpenter.kwok.sh", "", "a/b", "other"],
    "kind": ["KWOKNodeClass", "", "Other"],
    "name": ["default", "", "other"],
    "operator": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte", "in", ""],
    "values": [["5"], ["a", "b"], [], ["1", "2"], *([bound] for bound in BOUNDS)],
    "reasons": [[], ["Empty"], ["Empty", "Empty"], ["Drifted", "Empty", "Underutilized"], ["empty"]],
}
