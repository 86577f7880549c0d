"""Each field of the CRDs with its keywords, as the specification lists them; what a server makes of them is tested elsewhere."""

from __future__ import annotations

import pytest

from karpenter.api import crds
from karpenter.model.structural_schema import Schema

ABSENT = "absent"
DURN = r"^(([0-9]+(s|m|h))+|Never)$"
DUR = r"^([0-9]+(s|m|h))+$"
QN = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"
LV = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
NODES = r"^((100|[0-9]{1,2})%|[0-9]+)$"
SCHEDULE = r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$"
BUDGET_DURATION = r"^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$"
QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
CONDITION_TYPE = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
REASON = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
REASON_OR_NONE = r"^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?)?$"

LIST = "x-kubernetes-list-type"
Fields = dict[str, dict[str, object]]
ATOMIC = {"type": "array", LIST: "atomic"}
AMOUNT: dict[str, object] = {"x-kubernetes-int-or-string": True, "pattern": QUANTITY}
TAINT: Fields = {
    "": {"required": {"key", "effect"}},
    ".key": {"type": "string", "minLength": 1, "pattern": QN},
    ".value": {"type": "string", "minLength": ABSENT, "pattern": QN},
    ".effect": {"enum": {"NoSchedule", "PreferNoSchedule", "NoExecute"}},
    ".timeAdded": {"format": "date-time"},
}
REQUIREMENT: Fields = {
    "": {"required": {"key", "operator"}},
    ".key": {"maxLength": 316, "pattern": QN},
    ".operator": {"enum": {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"}},
    ".values": {**ATOMIC, "maxItems": ABSENT},
    ".values[]": {"type": "string", "maxLength": ABSENT, "pattern": ABSENT},
    ".minValues": {"type": "integer", "minimum": 1, "maximum": 50},
}
CLASS: Fields = {
    "": {"required": {"group", "kind", "name"}},
    ".group": {"type": "string", "pattern": "^[^/]*$"},
    ".kind": {"type": "string"},
    ".name": {"type": "string"},
}


def inside(path: str, fields: Fields) -> Fields:
    return {path + field: keywords for field, keywords in fields.items()}


def node_spec_fields(path: str) -> Fields:
    """What a pool's template and a claim's specification share."""
    return {
        **inside(f"{path}.requirements[]", REQUIREMENT),
        **inside(f"{path}.taints[]", TAINT),
        **inside(f"{path}.startupTaints[]", TAINT),
        **inside(f"{path}.nodeClassRef", CLASS),
        path: {"required": {"requirements", "nodeClassRef"}},
        f"{path}.requirements": {**ATOMIC, "maxItems": 100},
        f"{path}.taints": ATOMIC,
        f"{path}.startupTaints": ATOMIC,
        f"{path}.terminationGracePeriod": {"pattern": DUR, "default": ABSENT},
        f"{path}.expireAfter": {"pattern": DURN, "default": "720h"},
    }


def conditions(*required: str, reason: dict[str, object]) -> Fields:
    """API-607, API-115"""
    return inside(
        "status.conditions",
        {
            "": {"type": "array", LIST: "map", "x-kubernetes-list-map-keys": {"type"}},
            "[]": {"required": {"type", "status", "lastTransitionTime", *required}},
            "[].type": {"maxLength": 316, "pattern": CONDITION_TYPE},
            "[].status": {"enum": {"True", "False", "Unknown"}},
            "[].reason": {"maxLength": 1024, **reason},
            "[].message": {"maxLength": 32768},
            "[].lastTransitionTime": {"format": "date-time"},
            "[].observedGeneration": {"type": "integer", "minimum": 0},
        },
    )


EXPLAINED = conditions("reason", "message", reason={"minLength": 1, "pattern": REASON})
NODE_POOL: Fields = {
    **node_spec_fields("spec.template.spec"),
    **EXPLAINED,
    "": {"required": {"spec"}},
    "spec": {"required": {"template"}},
    "spec.template": {"required": {"spec"}},
    "spec.template.metadata.labels": {"maxProperties": 100, "x-kubernetes-map-type": "atomic"},
    "spec.template.metadata.labels{}": {"maxLength": 63, "pattern": LV},
    "spec.template.metadata.annotations": {"maxProperties": ABSENT, "x-kubernetes-map-type": ABSENT},
    "spec.template.metadata.annotations{}": {"type": "string"},
    "spec.replicas": {"type": "integer", "format": "int64", "minimum": 0, "default": ABSENT},
    "spec.weight": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 100, "default": ABSENT},
    "spec.limits{}": AMOUNT,
    "spec.disruption": {
        "default": {
            "consolidateAfter": "0s",
            "consolidationPolicy": "WhenEmptyOrUnderutilized",
            "budgets": [{"nodes": "10%"}],
        },
        "required": ABSENT,
    },
    "spec.disruption.consolidateAfter": {"pattern": DURN, "default": "0s"},  # K15-001
    "spec.disruption.consolidationPolicy": {
        "enum": {"WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"},
        "default": "WhenEmptyOrUnderutilized",
    },
    "spec.disruption.budgets": {**ATOMIC, "maxItems": 50, "default": [{"nodes": "10%"}]},
    "spec.disruption.budgets[].nodes": {"type": "string", "pattern": NODES, "default": "10%"},
    "spec.disruption.budgets[].reasons": {"maxItems": 50, LIST: "set"},
    "spec.disruption.budgets[].reasons[]": {"enum": {"Underutilized", "Empty", "Drifted", "Unhealthy", "Sleep"}},
    "spec.disruption.budgets[].schedule": {"pattern": SCHEDULE},
    "spec.disruption.budgets[].duration": {"pattern": BUDGET_DURATION},
    "status": {"required": ABSENT, "default": ABSENT},
    "status.resources{}": AMOUNT,
    "status.nodes": {"type": "integer", "format": "int64", "default": 0},
    "status.nodeClassObservedGeneration": {"type": "integer", "format": "int64"},
}
NODE_CLAIM: Fields = {
    **node_spec_fields("spec"),
    **conditions(reason={"minLength": ABSENT, "pattern": REASON_OR_NONE}),
    "": {"required": {"spec"}},
    "spec.resources": {"required": ABSENT},
    "spec.resources.requests{}": AMOUNT,
    "status.nodeName": {"type": "string"},
    "status.providerID": {"type": "string"},
    "status.imageID": {"type": "string"},
    "status.capacity{}": AMOUNT,
    "status.allocatable{}": AMOUNT,
    "status.lastPodEventTime": {"format": "date-time"},
}
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Ready",
    "message": "",
    "lastTransitionTime": "2024-01-01T01:01:01Z",
}
KWOK: Fields = {
    **EXPLAINED,
    "": {"required": ABSENT},
    "spec.nodeRegistrationDelay": {"pattern": DUR, "default": ABSENT},
    "status": {"default": {"conditions": [READY]}},
}
PRICE = r"^\d+(\.\d+)?$"
ADJUSTMENT = r"^(([+-]{1}(\d*\.?\d+))|(\+{1}\d*\.?\d+%)|(^(-\d{1,2}(\.\d+)?%)$)|(-100%))$"
OVERLAY_REQUIREMENT = {path: keywords for path, keywords in REQUIREMENT.items() if path != ".minValues"}
OVERLAY: Fields = {
    **EXPLAINED,
    **inside("spec.requirements[]", OVERLAY_REQUIREMENT),
    "": {"required": {"spec"}},
    "spec": {"required": {"requirements"}},
    "spec.requirements": {**ATOMIC, "maxItems": 100},
    "spec.price": {"type": "string", "pattern": PRICE, "default": ABSENT},
    "spec.priceAdjustment": {"type": "string", "pattern": ADJUSTMENT, "default": ABSENT},
    "spec.capacity{}": AMOUNT,
    "spec.weight": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 10_000, "default": ABSENT},
}
COUNT: dict[str, object] = {"type": "integer", "format": "int32", "minimum": 0}
BUFFER: Fields = {
    **EXPLAINED,
    "": {"required": {"spec"}},
    "spec": {"required": ABSENT},
    "spec.provisioningStrategy": {"type": "string", "default": "buffer.x-k8s.io/active-capacity"},
    "spec.podTemplateRef": {"required": {"name"}},
    "spec.podTemplateRef.name": {"type": "string", "minLength": 1},
    "spec.scalableRef": {"required": {"kind", "name"}},
    "spec.scalableRef.apiGroup": {"type": "string", "default": ABSENT},
    "spec.scalableRef.kind": {"type": "string"},
    "spec.scalableRef.name": {"type": "string"},
    "spec.replicas": COUNT,
    "spec.percentage": COUNT,
    "spec.limits{}": AMOUNT,
    "status.podTemplateRef.name": {"type": "string"},
    "status.podTemplateGeneration": {"type": "integer", "format": "int64"},
    "status.replicas": {"type": "integer", "format": "int32"},
    "status.provisioningStrategy": {"type": "string"},
}
TAGS: Fields = {".tags": {"type": "object", "maxProperties": 20}, ".tags{}": {"type": "string"}}
SWITCH = {"enabled", "disabled"}
TEXT: dict[str, object] = {"type": "string", "minLength": ABSENT, "maxLength": ABSENT, "pattern": ABSENT}
FLAG: dict[str, object] = {"type": "boolean", "default": ABSENT}
VOLUME_TYPES = {"standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"}
FAMILIES = {"AL2", "AL2023", "Bottlerocket", "Custom", "Ubuntu", "Windows2019", "Windows2022", "Windows2025"}
EC2_STATUS: Fields = {
    **EXPLAINED,
    "status.conditions": {"type": "array", LIST: ABSENT, "x-kubernetes-list-map-keys": ABSENT},
    "status.subnets[]": {"required": {"id", "zone"}},
    **{f"status.subnets[].{name}": TEXT for name in ("id", "zone", "zoneID")},
    "status.securityGroups[]": {"required": {"id"}},
    **{f"status.securityGroups[].{name}": TEXT for name in ("id", "name")},
    "status.amis[]": {"required": {"id", "requirements"}},
    **{f"status.amis[].{name}": TEXT for name in ("id", "name")},
    "status.amis[].deprecated": FLAG,
    "status.amis[].requirements[]": {"required": {"key", "operator"}},
    **{f"status.amis[].requirements[].{name}": TEXT for name in ("key", "operator", "values[]")},
    "status.capacityReservations[]": {
        "required": {"id", "availabilityZone", "instanceType", "instanceMatchCriteria", "ownerID"}
    },
    "status.capacityReservations[].id": {"pattern": "^cr-[0-9a-z]+$"},
    "status.capacityReservations[].availabilityZone": TEXT,
    "status.capacityReservations[].instanceType": TEXT,
    "status.capacityReservations[].instanceMatchCriteria": {"enum": {"open", "targeted"}},
    "status.capacityReservations[].ownerID": {"pattern": "^[0-9]{12}$"},
    "status.capacityReservations[].reservationType": {"enum": {"default", "capacity-block"}, "default": "default"},
    "status.capacityReservations[].interruptible": FLAG,
    "status.capacityReservations[].state": {"enum": {"active", "expiring"}, "default": "active"},
    "status.capacityReservations[].endTime": {"format": "date-time"},
    "status.instanceProfile": TEXT,
}
EC2_CLASS: Fields = {
    **EC2_STATUS,
    "": {"required": ABSENT},
    "spec": {
        "required": {"subnetSelectorTerms", "securityGroupSelectorTerms"}
    },  # API-860: Ubuntu has images of its own
    "spec.subnetSelectorTerms": {"maxItems": 30},
    "spec.subnetSelectorTerms[].id": {"pattern": "subnet-[0-9a-z]+"},
    **inside("spec.subnetSelectorTerms[]", TAGS),
    "spec.securityGroupSelectorTerms": {"maxItems": 30},
    "spec.securityGroupSelectorTerms[].id": {"pattern": "sg-[0-9a-z]+"},
    "spec.securityGroupSelectorTerms[].name": TEXT,
    **inside("spec.securityGroupSelectorTerms[]", TAGS),
    "spec.capacityReservationSelectorTerms": {"maxItems": 30},
    "spec.capacityReservationSelectorTerms[].id": {"pattern": "^cr-[0-9a-z]+$"},
    "spec.capacityReservationSelectorTerms[].ownerID": {"pattern": "^[0-9]{12}$"},
    "spec.capacityReservationSelectorTerms[].instanceMatchCriteria": {"enum": {"open", "targeted"}},
    **inside("spec.capacityReservationSelectorTerms[]", TAGS),
    "spec.placementGroupSelector.name": {"minLength": 1},
    "spec.placementGroupSelector.id": {"pattern": "^pg-[0-9a-z]+$"},
    "spec.amiSelectorTerms": {"maxItems": 30},
    "spec.amiSelectorTerms[].alias": {"maxLength": 30},
    "spec.amiSelectorTerms[].id": {"pattern": "ami-[0-9a-z]+"},
    **{f"spec.amiSelectorTerms[].{name}": TEXT for name in ("name", "owner", "ssmParameter")},
    **inside("spec.amiSelectorTerms[]", TAGS),
    "spec.amiFamily": {"enum": FAMILIES, "default": ABSENT},
    **{f"spec.{name}": TEXT for name in ("userData", "context", "role", "instanceProfile")},
    "spec.tags": {"maxProperties": ABSENT},
    "spec.tags{}": TEXT,
    "spec.kubelet": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "spec.blockDeviceMappings": {"maxItems": 50},
    "spec.blockDeviceMappings[].deviceName": TEXT,
    "spec.blockDeviceMappings[].rootVolume": FLAG,
    "spec.blockDeviceMappings[].ebs.deleteOnTermination": FLAG,
    "spec.blockDeviceMappings[].ebs.encrypted": FLAG,
    "spec.blockDeviceMappings[].ebs.iops": {"type": "integer", "minimum": ABSENT},
    "spec.blockDeviceMappings[].ebs.throughput": {"type": "integer", "minimum": ABSENT},
    "spec.blockDeviceMappings[].ebs.kmsKeyID": TEXT,
    "spec.blockDeviceMappings[].ebs.snapshotID": TEXT,
    "spec.blockDeviceMappings[].ebs.volumeInitializationRate": {"minimum": 100, "maximum": 300},
    "spec.blockDeviceMappings[].ebs.volumeSize": {"type": "string"},
    "spec.blockDeviceMappings[].ebs.volumeType": {"enum": VOLUME_TYPES},
    "spec.instanceStorePolicy": {"enum": {"RAID0"}},
    "spec.networkInterfaces": {"maxItems": 150},
    "spec.networkInterfaces[]": {"required": {"networkCardIndex", "deviceIndex", "interfaceType"}},
    "spec.networkInterfaces[].networkCardIndex": {"minimum": 0},
    "spec.networkInterfaces[].deviceIndex": {"minimum": 0},
    "spec.networkInterfaces[].interfaceType": {"enum": {"interface", "efa-only"}},
    "spec.detailedMonitoring": FLAG,
    "spec.associatePublicIPAddress": FLAG,
    "spec.ipPrefixCount": {"format": "int32", "minimum": 0},
    "spec.metadataOptions": {
        "default": {
            "httpEndpoint": "enabled",
            "httpProtocolIPv6": "disabled",
            "httpPutResponseHopLimit": 1,
            "httpTokens": "required",
        }
    },
    "spec.metadataOptions.httpEndpoint": {"enum": SWITCH, "default": "enabled"},
    "spec.metadataOptions.httpProtocolIPv6": {"enum": SWITCH, "default": "disabled"},
    "spec.metadataOptions.httpPutResponseHopLimit": {"minimum": 1, "maximum": 64, "default": 1},
    "spec.metadataOptions.httpTokens": {"enum": {"required", "optional"}, "default": "required"},
    "spec.connectionTracking.tcpEstablishedTimeout": {"minimum": 60, "maximum": 432000},
    "spec.connectionTracking.udpStreamTimeout": {"minimum": 60, "maximum": 180},
    "spec.connectionTracking.udpTimeout": {"minimum": 30, "maximum": 60},
    "spec.cpuOptions.nestedVirtualization": {"enum": SWITCH},
    "spec.enclaveOptions": {"required": {"enabled"}},
    "spec.enclaveOptions.enabled": FLAG,
}
WALL_DATES: Fields = {"": {"type": "array", "maxItems": 366}, "[]": {"pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}}
STATES: dict[str, object] = {"enum": {"Awake", "Asleep"}}
DURATION: dict[str, object] = {"type": "string", "pattern": r"^([0-9]+(s|m|h))+$"}
ANY_TEXT: dict[str, object] = {"type": "string"}
_HOST: Fields = {
    ".capacity{}": AMOUNT,
    ".labels{}": {"type": "string"},
    ".overhead{}": AMOUNT,
    ".variables{}": {"type": "string"},
}
MACHINES: Fields = {
    **EXPLAINED,
    **inside("spec.hosts[]", _HOST),
    **inside("status.inUse[]", _HOST),
    "": {"required": {"spec"}},
    "spec": {"required": {"power"}},
    "spec.power": {"minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
    "spec.hosts": {"type": "array", LIST: "map", "maxItems": 500},
    "spec.hosts[]": {"required": {"name", "capacity"}},
    "spec.hosts[].name": {"minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"},
    "spec.hosts[].costPerHour": {"pattern": r"^[0-9]+(\.[0-9]+)?$", "default": "0"},
    "status.inUse": {"type": "array"},
    "status.inUse[]": {"required": {"host", "claimName", "since"}},
    "status.inUse[].host": {"type": "string"},
    "status.inUse[].claimName": {"type": "string"},
    "status.inUse[].claimUid": {"type": "string"},
    "status.inUse[].since": {"format": "date-time"},
    "status.inUse[].terminating": {"type": "boolean"},
}
CAPACITY_SCHEDULE: Fields = {
    **EXPLAINED,
    **inside("spec.holidays.extra", WALL_DATES),
    **inside("spec.holidays.except", WALL_DATES),
    "": {"required": {"spec"}},
    "spec": {"required": {"nodePools"}},
    "spec.nodePools.names": {"type": "array", "maxItems": 100},
    "spec.nodePools.matchLabels{}": ANY_TEXT,
    "spec.windows": {**ATOMIC, "maxItems": 50},
    "spec.windows[]": {"required": {"days", "from", "until"}},
    "spec.windows[].name": {"maxLength": 63},
    "spec.windows[].days": {"type": "string"},
    "spec.windows[].from": {"pattern": r"^([01][0-9]|2[0-3]):[0-5][0-9]$"},
    "spec.windows[].until": {"pattern": r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"},
    "spec.windows[].state": {**STATES, "default": "Awake"},
    "spec.timeZone": {"minLength": 1, "maxLength": 64, "default": "UTC"},
    "spec.holidays.country": {"pattern": "^[A-Z]{2}$"},
    "spec.holidays.subdivision": {"maxLength": 10},
    "spec.otherwise": {**STATES, "default": "Asleep"},
    "spec.onHolidays": {**STATES, "default": ABSENT},
    "spec.sleep.grace": {**DURATION, "default": "10m"},
    "spec.sleep.deadline": {**DURATION, "default": "30m"},
    "spec.sleep.respect": {"type": "array", LIST: "set", "maxItems": 2},
    "spec.sleep.scaleDown": {"enum": {"None", "Workloads"}, "default": "None"},
    "spec.wake.warm": {"x-kubernetes-preserve-unknown-fields": True, "default": "None", "type": ABSENT},
    "spec.wake.stagger": {**DURATION, "default": "0s"},
    "status.beforeSleep": {"required": {"since"}},
    "status.beforeSleep.since": {"format": "date-time"},
    "status.beforeSleep.pods": {"type": "array"},
    "status.beforeSleep.pods[]": {"required": {"nodePool", "count"}},
    "status.beforeSleep.pods[].nodePool": {"type": "string"},
    "status.beforeSleep.pods[].requests{}": AMOUNT,
    "status.beforeSleep.pods[].count": {"type": "integer"},
    "spec.sleep.respect[]": {"enum": {"PodDisruptionBudgets", "DoNotDisrupt"}},
    "spec.wake.ahead": {**DURATION, "default": "5m"},
    "status.state": ANY_TEXT,
    "status.nextState": ANY_TEXT,
    "status.nextChange": {"format": "date-time"},
    "status.nodePools": {"type": "integer"},
    "status.nodes": {"type": "integer"},
    "status.launchDelaySeconds": {"type": "integer"},
}
KINDS = (
    ("NodePool", NODE_POOL),
    ("NodeClaim", NODE_CLAIM),
    ("KWOKNodeClass", KWOK),
    ("NodeOverlay", OVERLAY),
    ("CapacityBuffer", BUFFER),
    ("EC2NodeClass", EC2_CLASS),
    ("CapacitySchedule", CAPACITY_SCHEDULE),
    ("MachineNodeClass", MACHINES),
)
TABLE = [
    pytest.param(number, path, keywords, id=f"{kind}:{path}")
    for number, (kind, fields) in enumerate(KINDS)
    for path, keywords in fields.items()
]


def version(number: int) -> Schema:
    return crds.custom_resource_definitions()[number]["spec"]["versions"][0]


def field(number: int, path: str) -> Schema:
    open_apiv3_schema: Schema = version(number)["schema"]["openAPIV3Schema"]
    for part in path.replace("[]", ".[]").replace("{}", ".{}").split(".") if path else ():
        children = {"[]": open_apiv3_schema.get("items"), "{}": open_apiv3_schema.get("additionalProperties")}
        open_apiv3_schema = children[part] if part in children else open_apiv3_schema["properties"][part]
    return open_apiv3_schema


@pytest.mark.parametrize(("number", "path", "keywords"), TABLE)
def test_a_field_has_the_keywords_of_the_specification(number: int, path: str, keywords: dict[str, object]) -> None:
    """API-020 to API-031, API-040 to API-068, API-100 to API-115, API-200 to API-262, API-380, API-400, API-607.

    API-155, API-183, API-374, API-375: conditions of overlays, replicas of buffers, status of EC2NodeClasses.
    DIS-131: the form of a budget's nodes.
    """
    actual = field(number, path)
    for name, wanted in keywords.items():
        value = actual.get(name, ABSENT)
        assert (set(value) if isinstance(wanted, set) and value != ABSENT else value) == wanted, name


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_every_field_is_in_the_table(number: int) -> None:
    """A field that is added needs a line above."""
    listed_paths = {path.rstrip("[]{}") for path in KINDS[number][1]}

    def paths(schema: Schema, path: str) -> set[str]:
        below = {f"{path}.{name}".strip("."): element for name, element in schema.get("properties", {}).items()}  # type: ignore[attr-defined]
        result = {path} if not below else set()
        if "items" in schema:
            result |= paths(schema["items"], f"{path}[]")
        return result.union(*(paths(element, name) for name, element in below.items()))

    whole: Schema = version(number)["schema"]["openAPIV3Schema"]
    leaves = {path.rstrip("[]") for path in paths(whole, "")} - {"apiVersion", "kind", "metadata"}
    assert {
        path
        for path in leaves
        if path not in listed_paths and not any(element.startswith(path) for element in listed_paths)
    } == set()


def test_the_columns_are_printed_in_this_order() -> None:
    """API-008 to API-012"""

    def columns(number: int) -> list[tuple[str, str, int]]:
        result = version(number)["additionalPrinterColumns"]
        return [(element["name"], element["type"], element.get("priority", 0)) for element in result]  # type: ignore[attr-defined]

    assert columns(0) == [
        ("NodeClass", "string", 0),
        ("Nodes", "string", 0),
        ("Ready", "string", 0),
        ("Age", "date", 0),
        ("Weight", "integer", 1),
        ("CPU", "string", 1),
        ("Memory", "string", 1),
    ]
    assert columns(1) == [
        *((name, "string", 0) for name in ("Type", "Capacity", "Zone", "Node", "Ready")),
        ("Age", "date", 0),
        *((name, "string", 1) for name in ("ImageID", "ID", "NodePool", "NodeClass", "Drifted")),
    ]
    assert columns(2) == [("Ready", "string", 0), ("Age", "date", 0)]
    assert columns(4) == [
        ("Strategy", "string", 0),
        ("PodTemplate", "string", 0),
        ("Replicas", "integer", 0),
        *((f"Conditions{part}", "string", 0) for part in ("Type", "Status", "Reason")),
        ("Age", "date", 0),
    ]
    assert columns(3) == [("Ready", "string", 0), ("Age", "date", 0), ("Weight", "integer", 1)]
    assert columns(6) == [
        *((name, "string", 0) for name in ("State", "Next", "At")),
        *((name, "integer", 0) for name in ("NodePools", "Nodes")),
        ("Ready", "string", 0),
        ("Age", "date", 0),
    ]
    assert columns(5) == [("Ready", "string", 0), ("Age", "date", 0), ("Role", "string", 1)]


def test_only_pools_can_be_scaled_and_every_status_is_apart() -> None:
    """API-001 to API-006. SCH-704: the scale subresource reads `status.nodes`."""
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.nodes"}
    assert [version(number)["subresources"] for number in range(len(KINDS))] == [
        {"status": {}, "scale": scale},
        *({"status": {}} for _ in KINDS[1:]),
    ]
