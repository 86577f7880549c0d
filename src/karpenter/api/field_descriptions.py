"""What the fields of our kinds mean, for ``kubectl explain`` and docs/reference/kinds.md: by struct and wire name.

A test fails for a field without a description.
"""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.api import (
    capacity_buffer,
    capacity_schedule,
    ec2_node_class,
    karpenter,
    kwok_node_class,
    machine_node_class,
    node_overlay,
)
from karpenter.api.meta import Condition, Wire

#: Of every object.
API_VERSION = "Group and version of the kind."
KIND = "Name of the kind."
METADATA = "Metadata of every Kubernetes object: name, labels, annotations."

_CONDITIONS = "What controllers found out about the object; Ready sums it up."
_TAGS = "AWS tags that must match. The value * means any."

_NODE_POOL: dict[type[Wire], dict[str, str]] = {
    karpenter.NodePool: {
        "spec": "Which nodes may be launched, and when they may be removed.",
        "status": "What is known of the NodePool; controllers write it.",
    },
    karpenter.NodePoolSpec: {
        "template": "Template of the NodeClaims that the NodePool creates.",
        "disruption": "When and how fast nodes may be disrupted voluntarily.",
        "limits": "The most the nodes may have together, by resource. nodes counts nodes. At a limit "
        "nothing more is launched.",
        "weight": "Of several NodePools that suit a pod the one with the highest weight comes first. Default 0.",
        "replicas": "Makes the NodePool static: it keeps so many nodes, whatever pods there are. Needs "
        "the feature gate StaticCapacity.",
    },
    karpenter.NodeClaimTemplate: {
        "spec": "Specification of the NodeClaims.",
        "metadata": "Labels and annotations of the NodeClaims and their Nodes.",
    },
    karpenter.NodeClaimTemplateSpec: {
        "requirements": "Labels that instance types and offerings must have. All requirements must hold.",
        "nodeClassRef": "The node class: image, network and disks of the instances.",
        "taints": "Taints of the Nodes; only pods that tolerate them are planned for.",
        "startupTaints": "Taints that something else removes once a Node is prepared. Pods need not tolerate "
        "them to be planned for.",
        "expireAfter": "Age at which a node is replaced, such as 720h. Never disables expiration.",
        "terminationGracePeriod": "How long a drain may take at most. Then pods are deleted, whatever protects them. "
        "Unset: no end.",
    },
    karpenter.NodeSelectorRequirementWithMinValues: {
        "key": "Label key.",
        "operator": "How the label is compared: In, NotIn, Exists, DoesNotExist, Gt, Gte, Lt or Lte.",
        "values": "Label values. In and NotIn need at least one, Gt, Gte, Lt and Lte exactly one whole number.",
        "minValues": "A NodeClaim must be open to at least so many different values of the label.",
    },
    karpenter.NodeClassReference: {
        "group": "API group of the node class, such as karpenter.k8s.aws.",
        "kind": "Kind of the node class, such as EC2NodeClass.",
        "name": "Name of the node class.",
    },
    karpenter.NodePoolTaint: {
        "key": "Key of the taint.",
        "effect": "What happens to pods without a toleration: NoSchedule, PreferNoSchedule or NoExecute.",
        "value": "Value of the taint.",
        "timeAdded": "When the taint was added. Karpenter does not set it.",
    },
    karpenter.NodeClaimTemplateMeta: {
        "labels": "Labels of the NodeClaims and Nodes. Pods can select them.",
        "annotations": "Annotations of the NodeClaims and Nodes.",
    },
    karpenter.Disruption: {
        "consolidateAfter": "How long no pod must have come to or left a node before it is consolidated. Never "
        "disables consolidation.",
        "consolidationPolicy": "Which nodes are consolidated: empty ones, or also those whose pods fit elsewhere or "
        "on cheaper nodes.",
        "budgets": "How many nodes may be disrupted at a time. Of several active budgets the strictest counts.",
    },
    karpenter.Budget: {
        "nodes": "Number or percentage of the NodePool's nodes that may be disrupted at a time. 0 allows none.",
        "reasons": "Reasons of disruption that the budget limits. Default: all.",
        "schedule": "Cron expression in UTC of when the budget begins to count. Default: always. Needs duration.",
        "duration": "How long the budget counts from each time of the schedule, such as 8h. Needs schedule.",
    },
    karpenter.NodePoolStatus: {
        "resources": "Sum of the capacity of the NodePool's nodes; limits are compared with it.",
        "nodes": "Number of nodes.",
        "nodeClassObservedGeneration": "Generation of the node class that the conditions are about.",
        "conditions": _CONDITIONS,
    },
    Condition: {
        "type": "What the condition is about.",
        "status": "Whether it holds: True, False or Unknown.",
        "reason": "Cause of the status, as one word for programs.",
        "message": "Cause of the status for people.",
        "lastTransitionTime": "When the status changed last.",
        "observedGeneration": "Generation of the object that the condition is about.",
    },
}
_NODE_CLAIM: dict[type[Wire], dict[str, str]] = {
    karpenter.NodeClaim: {
        "spec": "What the instance must have. It does not change after creation.",
        "status": "What became of the instance; controllers write it.",
    },
    karpenter.NodeClaimSpec: {
        "requirements": "Labels that the instance must have: those of the NodePool, narrowed by the pods it is for.",
        "nodeClassRef": "The node class: image, network and disks of the instance.",
        "resources": "Resources that the instance must have for pods.",
        "taints": "Taints of the Node.",
        "startupTaints": "Taints that something else removes once the Node is prepared.",
        "expireAfter": "Age at which the node is replaced. Never disables expiration.",
        "terminationGracePeriod": "How long the drain may take at most. Then pods are deleted, whatever protects them.",
    },
    karpenter.NodeClaimResourceRequests: {
        "requests": "Sum of the requests of the pods it was planned for, DaemonSets included."
    },
    karpenter.NodeClaimStatus: {
        "nodeName": "Name of the Node.",
        "providerID": "ID of the instance at the cloud; the Node has the same in spec.providerID.",
        "imageID": "ID of the machine image.",
        "capacity": "Resources of the instance: estimated at launch.",
        "allocatable": "Resources left for pods: estimated at launch.",
        "lastPodEventTime": "When a pod came to or left the node last. consolidateAfter counts from here.",
        "conditions": "Steps of the node's life: Launched, Registered, Initialized, Ready; and "
        "Consolidatable, Drifted and others.",
    },
}
_MACHINES: dict[type[Wire], dict[str, str]] = {
    machine_node_class.MachineNodeClass: {
        "spec": "The hosts, and the driver that switches them.",
        "status": "The hosts in use; Karpenter writes it.",
    },
    machine_node_class.MachineNodeClassSpec: {
        "power": "Name of a program in the controller's directory of power drivers. It is called as DRIVER on|off|status HOST.",
        "hosts": "The hosts, by name.",
    },
    machine_node_class.MachineHost: {
        "name": "Name of the host and of its Node.",
        "capacity": "What the Node will report: cpu, memory, pods and others. Without pods 110.",
        "labels": "Labels of the Node. Zone, capacity type, architecture and instance type may be among them.",
        "overhead": "What of the capacity is reserved for the system.",
        "costPerHour": "What the host costs while it is on, in USD per hour.",
        "variables": "Environment of the driver for this host; each name gets the prefix MACHINE_. Not for secrets.",
    },
    machine_node_class.MachineNodeClassStatus: {
        "inUse": "Hosts that are on for a NodeClaim, or on their way there or back.",
        "conditions": _CONDITIONS,
    },
    machine_node_class.MachineInUse: {
        "host": "Name of the host.",
        "claimName": "Name of the NodeClaim.",
        "claimUid": "UID of the NodeClaim.",
        "since": "When it was taken.",
        "terminating": "Whether it is being powered off.",
        "labels": "Labels that were settled when it was taken.",
        "capacity": "Capacity when it was taken.",
        "overhead": "Overhead when it was taken.",
        "variables": "Variables when it was taken: a host that leaves the class can still be powered off.",
    },
}
_KWOK: dict[type[Wire], dict[str, str]] = {
    kwok_node_class.KWOKNodeClass: {
        "spec": "How simulated instances behave.",
        "status": "Whether the class can be used.",
    },
    kwok_node_class.KWOKNodeClassSpec: {
        "nodeRegistrationDelay": "How long a simulated instance takes from its launch to its Node, such as 35s."
    },
    kwok_node_class.KWOKNodeClassStatus: {"conditions": _CONDITIONS},
}
_OVERLAY: dict[type[Wire], dict[str, str]] = {
    node_overlay.NodeOverlay: {
        "spec": "Which instance types are changed, and how.",
        "status": "Whether the overlay is valid; controllers write it.",
    },
    node_overlay.NodeOverlaySpec: {
        "requirements": "Labels of the instance types and offerings that are changed. All must hold.",
        "price": "Price instead of the cloud's, USD per hour. Excludes priceAdjustment.",
        "priceAdjustment": "Change of the cloud's price: an amount such as +0.01, or a percentage such as -10%.",
        "capacity": "Further resources that instances will have, such as extended resources of a device plugin.",
        "weight": "Of overlays that change the same thing the one with the highest weight counts.",
    },
    node_overlay.OverlayRequirement: {
        "key": "Label key.",
        "operator": "How the label is compared: In, NotIn, Exists, DoesNotExist, Gt, Gte, Lt or Lte.",
        "values": "Label values. In and NotIn need at least one, Gt, Gte, Lt and Lte exactly one whole number.",
    },
    node_overlay.NodeOverlayStatus: {"conditions": _CONDITIONS},
}
_SCHEDULE: dict[type[Wire], dict[str, str]] = {
    capacity_schedule.CapacitySchedule: {
        "spec": "Which NodePools have capacity when.",
        "status": "What the schedule says now; controllers write it.",
    },
    capacity_schedule.CapacityScheduleSpec: {
        "nodePools": "The NodePools of the schedule.",
        "windows": "When the state differs from otherwise.",
        "timeZone": "IANA time zone of windows and holidays, such as Asia/Seoul.",
        "holidays": "Which days are holidays.",
        "otherwise": "State outside all windows.",
        "onHolidays": "State of whole holidays. Windows that begin on a holiday do not count then. "
        "Without it holidays are ordinary days.",
        "sleep": "How NodePools fall asleep.",
        "wake": "How NodePools wake up.",
    },
    capacity_schedule.NodePoolSelection: {
        "names": "Names of NodePools.",
        "matchLabels": "Labels of NodePools. A NodePool is selected if it has all of them.",
    },
    capacity_schedule.ScheduleHolidays: {
        "country": "ISO 3166-1 code of the country whose public holidays count.",
        "subdivision": "ISO 3166-2 code of a part of the country, without the country.",
        "extra": "Dates that are holidays, too, such as 2026-12-24.",
        "except": "Dates that are no holidays.",
    },
    capacity_schedule.ScheduleWindow: {
        "days": "Days on which the window begins: daily, or weekdays such as mon-fri or mon,wed,sat-sun.",
        "from": "Beginning, as a clock in the time zone shows it.",
        "until": "End, on the next day if it is not after the beginning.",
        "state": "State of the NodePools in the window.",
        "name": "Name shown to users.",
    },
    capacity_schedule.SleepSettings: {
        "grace": "Time from the beginning of sleep during which no node is drained.",
        "deadline": "Time from the beginning of sleep after which what respect leaves out no longer holds a node.",
        "respect": "What holds a node even after the deadline. Until the deadline both count.",
        "scaleDown": "Workloads: after grace, Deployments and StatefulSets of namespaces with the label "
        "karpenter.sh/capacity-schedule and this schedule's name have no replicas until the NodePools wake up.",
    },
    capacity_schedule.WakeSettings: {
        "ahead": "How long before the window NodePools wake up, at least.",
        "warm": "Capacity beside that for pending pods: None, AsBefore (what pods had before sleep), buffer (what "
        "CapacityBuffers ask for), or an object with the number of nodes: {nodes: 3}.",
        "stagger": "Over what time workloads that were scaled down get their replicas back.",
    },
    capacity_schedule.RememberedCapacity: {
        "since": "Beginning of the sleep.",
        "pods": "The pods, by NodePool and size.",
    },
    capacity_schedule.RememberedPods: {
        "nodePool": "NodePool on which they ran.",
        "requests": "What each requests.",
        "count": "Number of them.",
    },
    capacity_schedule.CapacityScheduleStatus: {
        "state": "Awake or Asleep, by the calendar.",
        "nextState": "State after the next change.",
        "nextChange": "When the state changes next.",
        "nodePools": "Number of NodePools selected.",
        "nodes": "Number of nodes of these NodePools.",
        "launchDelaySeconds": "How long nodes of these NodePools take from their order to initialization.",
        "beforeSleep": "Pods that ran when sleep began, for wake.warm AsBefore.",
        "conditions": _CONDITIONS,
    },
}
_BUFFER: dict[type[Wire], dict[str, str]] = {
    capacity_buffer.CapacityBuffer: {
        "spec": "For which pods room is kept, and how much.",
        "status": "What the buffer was resolved to; controllers write it.",
    },
    capacity_buffer.CapacityBufferSpec: {
        "provisioningStrategy": "How room is kept. Buffers with a strategy that Karpenter does not know are left "
        "alone.",
        "podTemplateRef": "PodTemplate that says what a pod of the buffer requests. Excludes scalableRef.",
        "scalableRef": "Workload whose pod template counts. Excludes podTemplateRef.",
        "replicas": "Number of pods that room is kept for.",
        "percentage": "Number of pods as a share of the workload's replicas, in percent. Needs scalableRef.",
        "limits": "The most that the buffer's pods may request together, by resource.",
    },
    capacity_buffer.PodTemplateReference: {"name": "Name of the PodTemplate in the buffer's namespace."},
    capacity_buffer.ScalableReference: {
        "kind": "Kind of the workload: Deployment, ReplicaSet or StatefulSet.",
        "name": "Name of the workload in the buffer's namespace.",
        "apiGroup": "API group of the workload, such as apps.",
    },
    capacity_buffer.CapacityBufferStatus: {
        "podTemplateRef": "PodTemplate that is in use.",
        "podTemplateGeneration": "Generation of the pod template that is in use.",
        "replicas": "Number of pods that room is kept for now.",
        "provisioningStrategy": "Strategy that is in use.",
        "conditions": _CONDITIONS,
    },
}
_EC2: dict[type[Wire], dict[str, str]] = {
    ec2_node_class.EC2NodeClass: {
        "spec": "Image, network, disks and rights of the instances.",
        "status": "What the selectors found; controllers write it.",
    },
    ec2_node_class.EC2NodeClassSpec: {
        "subnetSelectorTerms": "Subnets for instances. A subnet that matches one of the terms counts.",
        "securityGroupSelectorTerms": "Security groups of instances. A group that matches one of the terms counts.",
        "capacityReservationSelectorTerms": "Capacity reservations that may be used. Their instances have the capacity type "
        "reserved.",
        "placementGroupSelector": "Placement group that all instances are launched into.",
        "amiSelectorTerms": "Machine images. An image that matches one of the terms counts; of several the newest "
        "that suits the type. Without terms amiFamily Ubuntu means Canonical's images.",
        "amiFamily": "Operating system: decides the format of user data and the default disks. An alias in "
        "amiSelectorTerms implies it.",
        "userData": "User data; it is merged with what a node needs to join the cluster. With amiFamily "
        "Custom it is used as it is, with Ubuntu too where it is a script that does not call /etc/eks/bootstrap.sh.",
        "role": "IAM role of instances; the controller makes an instance profile for it. Excludes instanceProfile.",
        "instanceProfile": "Name of an existing instance profile. Excludes role.",
        "tags": "AWS tags of everything that is created for instances: instances, volumes, launch templates.",
        "kubelet": "Settings of the kubelet. They change how many pods and how much memory a node has for pods.",
        "blockDeviceMappings": "Disks. Default: one root volume as the amiFamily needs it.",
        "instanceStorePolicy": "RAID0 joins local NVMe disks into the storage for pods; it then counts as ephemeral "
        "storage.",
        "networkInterfaces": "Network interfaces, such as those for EFA. Default: one.",
        "detailedMonitoring": "Metrics of the instance in CloudWatch every minute instead of every five. AWS "
        "charges for it.",
        "associatePublicIPAddress": "Whether instances get public IP addresses. Default: what the subnet says.",
        "ipPrefixCount": "Number of IP prefixes that are assigned to the first network interface.",
        "metadataOptions": "How pods and the node reach the instance metadata service.",
        "connectionTracking": "How long security groups remember idle connections.",
        "context": "Reserved context of EC2's CreateFleet; AWS gives it out.",
        "cpuOptions": "Options of the processor.",
        "enclaveOptions": "Nitro Enclaves.",
    },
    ec2_node_class.SubnetSelectorTerm: {"tags": _TAGS, "id": "ID of the subnet."},
    ec2_node_class.SecurityGroupSelectorTerm: {
        "tags": _TAGS,
        "id": "ID of the security group.",
        "name": "Name of the security group, which is not its Name tag.",
    },
    ec2_node_class.CapacityReservationSelectorTerm: {
        "tags": _TAGS,
        "id": "ID of the capacity reservation.",
        "ownerID": "AWS account that owns the reservation.",
        "instanceMatchCriteria": "Which instances use the reservation by themselves: open takes all that match, "
        "targeted none.",
    },
    ec2_node_class.PlacementGroupSelector: {
        "name": "Name of the placement group. Excludes id.",
        "id": "ID of the placement group. Excludes name.",
    },
    ec2_node_class.AMISelectorTerm: {
        "alias": "Family and version of images that AWS publishes, such as al2023@latest or bottlerocket@v1.20.0.",
        "tags": _TAGS,
        "id": "ID of the image.",
        "name": "Name of the image; it may have wildcards.",
        "owner": "Owner of the image: an account ID, self or amazon.",
        "ssmParameter": "Name or ARN of an SSM parameter that holds the ID of the image.",
    },
    ec2_node_class.BlockDeviceMapping: {
        "deviceName": "Name of the device, such as /dev/xvda.",
        "rootVolume": "Whether the kubelet stores pods and images here; its size counts as ephemeral storage.",
        "ebs": "Settings of the EBS volume.",
    },
    ec2_node_class.BlockDevice: {
        "deleteOnTermination": "Whether the volume is deleted with the instance.",
        "encrypted": "Whether the volume is encrypted.",
        "iops": "I/O operations per second, for types gp3, io1 and io2.",
        "kmsKeyID": "KMS key that encrypts the volume: ID, alias or ARN.",
        "snapshotID": "Snapshot that the volume starts from.",
        "throughput": "Throughput in MiB/s, for type gp3.",
        "volumeInitializationRate": "Rate in MiB/s at which the blocks of the snapshot are loaded.",
        "volumeSize": "Size, such as 100Gi.",
        "volumeType": "Type of the volume, such as gp3.",
    },
    ec2_node_class.NetworkInterface: {
        "networkCardIndex": "Network card that the interface is on.",
        "deviceIndex": "Index of the interface on its card.",
        "interfaceType": "interface for an ordinary one, efa-only for one that carries EFA traffic only.",
    },
    ec2_node_class.MetadataOptions: {
        "httpEndpoint": "Whether the metadata service answers.",
        "httpProtocolIPv6": "Whether it answers over IPv6.",
        "httpPutResponseHopLimit": "How many hops an answer may travel. 1 keeps containers without host network out.",
        "httpTokens": "required admits only requests with a session token (IMDSv2).",
    },
    ec2_node_class.ConnectionTracking: {
        "tcpEstablishedTimeout": "For idle established TCP connections, such as 350s.",
        "udpStreamTimeout": "For UDP flows that had more than one request and answer.",
        "udpTimeout": "For UDP flows that went one way, or had one request and answer.",
    },
    ec2_node_class.CpuOptions: {"nestedVirtualization": "Whether the instance may run virtual machines."},
    ec2_node_class.EnclaveOptions: {"enabled": "Whether the instance may run enclaves."},
    ec2_node_class.EC2NodeClassStatus: {
        "subnets": "Subnets that the selector found.",
        "securityGroups": "Security groups that the selector found.",
        "amis": "Images that the selector found, with the instance types they suit.",
        "capacityReservations": "Capacity reservations that the selector found.",
        "instanceProfile": "Instance profile of instances.",
        "conditions": _CONDITIONS,
    },
    ec2_node_class.Subnet: {
        "id": "ID of the subnet.",
        "zone": "Zone of the subnet.",
        "zoneID": "ID of the zone, the same in every account.",
    },
    ec2_node_class.SecurityGroup: {"id": "ID of the security group.", "name": "Name of the security group."},
    ec2_node_class.AMI: {
        "id": "ID of the image.",
        "requirements": "Labels of the instance types that the image suits.",
        "name": "Name of the image.",
        "deprecated": "Whether its owner has deprecated it. It is used only where no other suits.",
    },
    ec2_node_class.ImageRequirement: {
        "key": "Label key.",
        "operator": "How the label is compared.",
        "values": "Label values.",
    },
    ec2_node_class.CapacityReservation: {
        "id": "ID of the reservation.",
        "availabilityZone": "Zone of the reservation.",
        "instanceType": "Instance type of the reservation.",
        "instanceMatchCriteria": "Which instances use the reservation by themselves: open takes all that match, "
        "targeted none.",
        "ownerID": "AWS account that owns the reservation.",
        "reservationType": "default, or capacity-block for a block with a fixed end.",
        "interruptible": "Whether the owner may take instances back.",
        "state": "active, or expiring shortly before its end.",
        "endTime": "When the reservation ends; unset where it has no end.",
    },
}

#: Description by struct and wire name of the field.
FIELD_DESCRIPTIONS: Mapping[tuple[type[Wire], str], str] = {
    (owner, name): text
    for part in (_NODE_POOL, _NODE_CLAIM, _KWOK, _MACHINES, _OVERLAY, _SCHEDULE, _BUFFER, _EC2)
    for owner, fields in part.items()
    for name, text in fields.items()
}
