"""Which KWOKNodeClasses and EC2NodeClasses an API server accepts or rejects."""

from __future__ import annotations

from collections.abc import Mapping

from support.admission_rows import (
    ABSENT,
    A,
    Json,
    R,
    Row,
    Verdict,
    rows_of,
)

CLASSES = [
    Row("API-380-A1", "KWOKNodeClass", A, {}),
    Row("API-380-A2", "KWOKNodeClass", A, {"spec": ABSENT}),
    Row("API-380-A3", "KWOKNodeClass", A, {"spec": None, "status": {"conditions": []}}),
    Row("API-380-A4", "KWOKNodeClass", A, {"spec.nodeRegistrationDelay": "30s"}),
    Row("API-380-A5", "KWOKNodeClass", A, {"spec.nodeRegistrationDelay": None, "spec.other": 1}),
    Row("API-380-R1", "KWOKNodeClass", R, {"spec.nodeRegistrationDelay": "Never"}),
    Row("API-380-R2", "KWOKNodeClass", R, {"spec.nodeRegistrationDelay": ""}),
    Row("API-380-R3", "KWOKNodeClass", R, {"spec": "fast"}),
    Row(
        "API-380-A6", "KWOKNodeClass", A, {"spec.nodeRegistrationDelay": "1m"}, (), {"spec.nodeRegistrationDelay": "1h"}
    ),
]


def _ec2(id_: str, verdict: Verdict, *changes: Mapping[str, object], words: tuple[str, ...] = ()) -> list[Row]:
    return rows_of(id_, "EC2NodeClass", verdict, changes, words)


def _at(id_: str, verdict: Verdict, name: str, *values: object, words: tuple[str, ...] = ()) -> list[Row]:
    """Rows about one field of an EC2NodeClass."""
    return _ec2(id_, verdict, *({f"spec.{name}": value} for value in values), words=words)


def _images(id_: str, verdict: Verdict, *lists: list[Json], words: tuple[str, ...] = ()) -> list[Row]:
    """Rows about image terms, of a class that names its family."""
    return _ec2(id_, verdict, *({"spec.amiSelectorTerms": t, "spec.amiFamily": "Custom"} for t in lists), words=words)


def _volumes(id_: str, verdict: Verdict, *volumes: Json, words: tuple[str, ...] = ()) -> list[Row]:
    return _at(id_, verdict, "blockDeviceMappings", *([{"ebs": volume}] for volume in volumes), words=words)


def _card(card: int, device: int, type_: str = "interface") -> Json:
    return {"networkCardIndex": card, "deviceIndex": device, "interfaceType": type_}


_SUBNET_TERMS = "subnetSelectorTerms"
_GROUP_TERMS = "securityGroupSelectorTerms"
_RESERVATION_TERMS = "capacityReservationSelectorTerms"
_A_B: Json = {"tags": {"a": "b"}}
_EXCLUSIVE = ("mutually exclusive",)
_ANY = ("at least one",)
_FIRST = _card(0, 0)
_SIZES = ("100Gi", "59000Gi", "64000G", "58Ti", "64T", "1Gi", "18Ti", "Ti", "T", "9Ti")
_NO_SIZES = ("0Gi", "59001Gi", "64001G", "59Ti", "65T", "100Mi", "1.5Ti", "", "100", "0Ti", "100Gi\n", 100)
#: API §7 and its scenarios (§19.6), AWS §2: every field of AWS-031 to AWS-051.
EC2_CLASSES = [
    *_ec2("API-S140", A, {}),
    *_ec2("API-022-ec2", A, {"spec": ABSENT}, {"spec": None}),
    *_ec2("API-022-ec2", R, {"spec": {}}, {"spec": "text"}),
    *_at("API-S141", R, _SUBNET_TERMS, ABSENT, None, words=("subnetSelectorTerms",)),
    *_at("AWS-T030", R, _SUBNET_TERMS, [], words=("subnetSelectorTerms cannot be empty",)),
    *_at("AWS-T031", R, _SUBNET_TERMS, [{}], [_A_B, {}], [{"id": None}], words=(*_ANY, "tags, id")),
    *_at("API-S141-count", R, _SUBNET_TERMS, [_A_B] * 31, words=("30",)),
    *_at("API-S141-count", A, _SUBNET_TERMS, [_A_B] * 30),
    *_at(
        "API-S142", A, _SUBNET_TERMS, [_A_B], [{"id": "subnet-123"}], [{"id": "x subnet-1 y"}], [{"tags": {"a": "*"}}]
    ),
    *_at("API-S142-id", R, _SUBNET_TERMS, [{"id": "subnet-"}], [{"id": "net-1"}], [{"id": 5}], [None], words=()),
    *_at("AWS-T033", R, _SUBNET_TERMS, [{"tags": {"": "x"}}], [_A_B, {"tags": {"a": ""}}], words=("empty tag",)),
    *_at("API-S142-tags", R, _SUBNET_TERMS, [{"tags": {f"k{i}": "v" for i in range(21)}}], words=("20",)),
    *_at("API-S143", R, _SUBNET_TERMS, [{**_A_B, "id": "subnet-1"}], words=_EXCLUSIVE),
    *_at("AWS-T032", R, _SUBNET_TERMS, [{**_A_B, "id": "subnet-1"}] * 2, words=_EXCLUSIVE),
    *_at("AWS-T032", A, _SUBNET_TERMS, [{**_A_B, "id": "subnet-1"}, _A_B], [{"tags": {}, "id": "subnet-1"}, _A_B]),
    *_at("API-S144", A, _GROUP_TERMS, [{"name": "n"}], [{"id": "sg-1"}], [_A_B]),
    *_at("API-S144", R, _GROUP_TERMS, [{}], words=_ANY),
    *_at("API-S144-more", R, _GROUP_TERMS, [], ABSENT, [{"id": "s-1"}], [{"name": "n"}] * 31, words=(_GROUP_TERMS,)),
    *_at("AWS-T033-group", R, _GROUP_TERMS, [{"tags": {"a": ""}}], words=("empty tag",)),
    *_at(
        "API-S145",
        R,
        _GROUP_TERMS,
        [{"id": "sg-1", "name": "n"}],
        [{"name": "n", **_A_B}],
        [{"id": "sg-1", **_A_B}],
        words=_EXCLUSIVE,
    ),
    *_at("AWS-T034", A, _GROUP_TERMS, [{"id": "sg-1", "name": "n"}, {"name": "n"}], [{"name": "n", **_A_B}, _A_B]),
    # AWS-T036
    *_images("API-S146", R, [{"owner": "self"}], [{}], [{"id": "ami-1"}, {"owner": "1"}], words=_ANY),
    *_images(
        "API-S147",
        R,
        [{"id": "ami-1", **_A_B}],
        [{"id": "ami-1", "name": "n"}],
        [{"id": "ami-1", "owner": "o"}],
        [_A_B, {"id": "ami-1", "name": "n"}],
        [{"alias": "al2@latest", "name": "n"}],
        [{"alias": "al2@latest", "owner": "o"}],
        [{"alias": "al2@latest", "id": "ami-1"}],
        words=_EXCLUSIVE,
    ),
    *_images(
        "API-S147",
        A,
        [{"name": "n", "owner": "o"}],
        [{**_A_B, "owner": "o"}],
        [{**_A_B, "name": "n"}],
        [{"id": "ami-1", "ssmParameter": "/p"}],
        [{"ssmParameter": "/p", "name": "n"}],
    ),
    *_images("API-S147-more", R, [], [{"id": "image-1"}], [{"name": "n"}] * 31, [{"tags": {"a": ""}}]),
    *_at(
        "API-S148",
        A,
        "amiSelectorTerms",
        *(
            [{"alias": alias}]
            for alias in ("al2023@v20240807", "al2@latest", "bottlerocket@1.20.4", "windows2022@latest", "al2@a@b")
        ),
    ),
    *_images("AWS-T037", R, [{"alias": "al2"}], [{"alias": "al2@"}], [{"alias": "@latest"}], words=("family@version",)),
    *_images("AWS-T037-line", R, [{"alias": "al2@a\nb"}], words=("family@version",)),
    *_images("API-S149", R, [{"alias": "AL2023@latest"}], [{"alias": "ubuntu@latest"}], words=("not supported",)),
    *_images("AWS-T038", R, [{"alias": "windows2022@v1"}], [{"alias": "windows2025@latest1"}], words=("latest",)),
    *_images("API-225-length", R, [{"alias": "al2023@" + "v" * 24}], words=("30",)),
    *_images("API-S150", R, [{"alias": "al2@latest"}, {"name": "n"}], words=_EXCLUSIVE),
    *_images("AWS-T035", R, [{"alias": "al2023@latest"}, {"id": "ami-1"}], words=("mutually exclusive", "alias")),
    *_at("API-S151", A, "amiFamily", "AL2023", "Custom", None),
    *_at("API-S151", R, "amiFamily", "Bottlerocket", "AL2", words=("amiFamily", "alias family")),
    *_at("API-232", R, "amiFamily", "", "al2023", "ubuntu", 5),
    *_ec2(
        "API-860",
        A,
        {"spec.amiFamily": "Ubuntu", "spec.amiSelectorTerms": None},
        {"spec.amiFamily": "Ubuntu", "spec.amiSelectorTerms": [{"id": "ami-1"}]},
    ),
    *_ec2(
        "API-860",
        R,
        *({"spec.amiFamily": family, "spec.amiSelectorTerms": None} for family in ("AL2023", "Custom", None)),
        words=("amiSelectorTerms must be given",),
    ),
    *_ec2("API-860", R, {"spec.amiFamily": "Ubuntu", "spec.amiSelectorTerms": [{"alias": "al2@latest"}]}),
    *_ec2(
        "AWS-T039",
        A,
        *({"spec.amiSelectorTerms": [{"alias": "al2@latest"}], "spec.amiFamily": f} for f in ("AL2", "Custom")),
    ),
    *_ec2(
        "AWS-T039",
        R,
        {"spec.amiSelectorTerms": [{"alias": "al2@latest"}], "spec.amiFamily": "AL2023"},
        {"spec.amiSelectorTerms": [{"alias": "al2023@latest"}], "spec.amiFamily": "AL2"},
        words=("amiFamily", "alias family"),
    ),
    # AWS-T040
    *_at("API-S152", R, "amiSelectorTerms", [{"id": "ami-1"}], [{"name": "n"}], words=("must specify amiFamily",)),
    *_ec2("AWS-T041", R, {"spec.instanceProfile": "p"}, {"spec.role": ABSENT}, words=("exactly one of role",)),
    *_at("AWS-T042", R, "role", "", words=("role cannot be empty",)),
    *_ec2("API-S153-profile", R, {"spec.role": ABSENT, "spec.instanceProfile": ""}, words=("cannot be empty",)),
    *_ec2("API-206", A, {"spec.role": ABSENT, "spec.instanceProfile": "p"}),
    Row("API-S154-A1", "EC2NodeClass", A, {"spec.role": "b"}, (), {}),
    Row("AWS-T043", "EC2NodeClass", A, {"spec.role": ABSENT, "spec.instanceProfile": "p"}, (), {}),
    Row("API-S154-R1", "EC2NodeClass", R, {"spec.instanceProfile": "p"}, ("exactly one",), {}),
    *(
        row
        for key in (
            "eks:eks-cluster-name",
            "kubernetes.io/cluster/other",
            "kubernetes.io/cluster-x",
            "karpenter.sh/nodepool",
            "karpenter.sh/nodeclaim",
            "karpenter.k8s.aws/ec2nodeclass",
        )
        for row in _at(
            f"AWS-T044-{key}", R, "tags", {key: "a"}, {"a": "b", key: ""}, words=("restricted tag", key[:21])
        )
    ),
    *_at("API-S155-empty", R, "tags", {"": "a"}, words=("empty tag",)),
    *_at(
        "API-S156", A, "tags", {"karpenter.sh/custom-key": "a"}, {"karpenter.sh/managed-by": "a"}, {"a": ""}, {}, None
    ),
    *_at("API-S156", R, "tags", {"a": 1}, []),
    *_at(
        "AWS-T045",
        R,
        "blockDeviceMappings",
        [{"rootVolume": True}, {"rootVolume": True}],
        words=("only one", "rootVolume"),
    ),
    *_at("API-S157", A, "blockDeviceMappings", [{"rootVolume": True}, {"rootVolume": False}, {}], [], [{}] * 50),
    *_at("API-S157-count", R, "blockDeviceMappings", [{}] * 51, words=("50",)),
    *_volumes("AWS-T046", R, {}, {"encrypted": True}, words=("snapshotID or volumeSize",)),  # API-S158
    # AWS-T053
    *_volumes("API-S159", A, *({"volumeSize": size} for size in _SIZES)),
    *_volumes("API-S159", R, *({"volumeSize": size} for size in _NO_SIZES), words=("volumeSize",)),
    *_volumes(
        "AWS-T047",
        R,
        {"volumeSize": "1Gi", "volumeInitializationRate": 150},
        {"snapshotID": "", "volumeInitializationRate": 150},
        words=("snapshotID", "volumeInitializationRate"),
    ),
    *_volumes("API-S160", R, *({"snapshotID": "s", "volumeInitializationRate": rate} for rate in (99, 301, "150"))),
    *_volumes("API-S160", A, {"snapshotID": "s", "volumeInitializationRate": 100}, {"snapshotID": ""}),
    *_volumes(
        "API-249", A, *({"volumeSize": "1Gi", "volumeType": t} for t in ("standard", "io1", "io2", "gp2", "st1"))
    ),
    *_volumes("API-249", R, {"volumeSize": "1Gi", "volumeType": "gp4"}, {"volumeSize": "1Gi", "iops": "3000"}),
    *_volumes("API-250", A, {"volumeSize": "1Gi", "iops": -1, "throughput": 2**40, "kmsKeyID": "", "unknown": 5}),
    *_at("API-S161", A, "metadataOptions", {"httpTokens": "optional"}, {}, None, {"httpEndpoint": None}),
    *_at("API-S162", R, "metadataOptions", *({"httpPutResponseHopLimit": n} for n in (0, 65, "1", 1.5))),
    *_at("API-S162", A, "metadataOptions", {"httpPutResponseHopLimit": 64}),
    *_at("API-255", R, "metadataOptions", {"httpTokens": "yes"}, {"httpEndpoint": ""}, {"httpProtocolIPv6": True}),
    # AWS-T049
    *_at("API-S163", R, "networkInterfaces", [_card(0, 0, "efa-only")], [_card(0, 1)], words=("primary",)),
    *_at(
        "API-S163-same",
        R,
        "networkInterfaces",
        [_FIRST, _FIRST],
        [_FIRST, _card(0, 0, "efa-only")],
        words=("duplicate",),
    ),
    *_at(
        "API-S163-efa",
        R,
        "networkInterfaces",
        [_FIRST, _card(0, 1, "efa-only"), _card(0, 2, "efa-only")],
        words=("efa-only", "card"),
    ),
    *_at("API-S164", A, "networkInterfaces", [_FIRST, _card(0, 1, "efa-only"), _card(1, 1, "efa-only")], [], [_FIRST]),
    *_at(
        "API-260", R, "networkInterfaces", [{**_FIRST, "deviceIndex": None}], [_FIRST, _card(-1, 0)], [_card(0, 0, "x")]
    ),
    *_at("API-260-count", A, "networkInterfaces", [_card(0, device) for device in range(150)]),
    *_at("API-260-count", R, "networkInterfaces", [_card(0, device) for device in range(151)], words=("150",)),
    *_at("AWS-T050", R, "connectionTracking", {}, {"unknown": 1}, words=_ANY),
    *_at(
        "API-S165",
        R,
        "connectionTracking",
        {"udpTimeout": 61},
        {"udpTimeout": 29},
        {"udpStreamTimeout": 181},
        {"tcpEstablishedTimeout": 59},
        {"tcpEstablishedTimeout": 432001},
    ),
    *_at(
        "API-S165",
        A,
        "connectionTracking",
        {"tcpEstablishedTimeout": 60},
        {"udpTimeout": 30},
        {"udpStreamTimeout": 180},
    ),
    *_at("AWS-T051", R, "placementGroupSelector", {"name": "n", "id": "pg-1"}, words=_EXCLUSIVE),
    *_at("API-S166", R, "placementGroupSelector", {}, words=_ANY),
    *_at("API-S166-form", R, "placementGroupSelector", {"id": "xpg-1"}, {"name": ""}),
    *_at("API-S166", A, "placementGroupSelector", {"id": "pg-1"}, {"name": "n"}),
    *_at("API-S167", R, _RESERVATION_TERMS, [{"ownerID": "1" * 12}], words=_ANY),
    *_at("API-S167", A, _RESERVATION_TERMS, [{"ownerID": "1" * 12, **_A_B}], [], None, [{"id": "cr-1"}]),
    *_at("API-226", A, _RESERVATION_TERMS, [{"instanceMatchCriteria": "open", "ownerID": "1" * 12}]),
    *_at(
        "API-S167-id",
        R,
        _RESERVATION_TERMS,
        [{"id": "cr-1", **_A_B}],
        [{"id": "cr-1", "ownerID": "1" * 12}],
        [{"id": "cr-1", "instanceMatchCriteria": "open"}],
        words=_EXCLUSIVE,
    ),
    *_at("API-226-all", A, _RESERVATION_TERMS, [{"id": "cr-1", **_A_B}, _A_B]),
    *_at(
        "API-226",
        R,
        _RESERVATION_TERMS,
        [{"id": "xcr-1"}],
        [{**_A_B, "ownerID": "1"}],
        [{"instanceMatchCriteria": "any"}],
        [_A_B] * 31,
        [{"tags": {"a": ""}}],
    ),
    *_at("AWS-T052", A, "kubelet", {"unknown": {"x": [1, 2.5, True]}}, {"maxPods": "110"}, {}, None),
    *_at("API-217", R, "kubelet", [], "text"),
    *_at("API-210", A, "ipPrefixCount", 0, 2**31 - 1),
    *_at("API-210", R, "ipPrefixCount", -1, "1", 2**63),
    *_at("API-211", R, "instanceStorePolicy", "raid0", "RAID1", ""),
    *_at("API-216", R, "cpuOptions", {"nestedVirtualization": "yes"}),
    *_at("K15-A132", R, "enclaveOptions", {}, {"enabled": "yes"}),
    *_at("K15-A20", A, "enclaveOptions", {"enabled": True}, {"enabled": False}, None),
    *_ec2(
        "API-207",
        A,
        {
            "spec.userData": "text",
            "spec.context": "c",
            "spec.instanceStorePolicy": "RAID0",
            "spec.cpuOptions": {"nestedVirtualization": "enabled"},
            "spec.detailedMonitoring": True,
            "spec.associatePublicIPAddress": False,
        },
    ),
    *_at("API-209", R, "detailedMonitoring", "true", 1),
]
