"""User data of every family, read back as the machine's boot program would."""

from __future__ import annotations

import dataclasses
import shlex
import tomllib
from email import message_from_string

import pytest
import yaml
from structlog.testing import capture_logs

from karpenter.api.scheduling_constraints import Taint
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.userdata import BootstrapOptions, UserDataError, render_user_data
from karpenter.providers.aws.userdata.kubelet_settings import KubeletTypeFacts, resolve_kubelet_settings
from karpenter.providers.aws.userdata.user_data import USER_DATA_LIMIT_BYTES, USER_DATA_WARNING_BYTES, user_data_size
from karpenter.providers.contract import NodeClassNotReady

CLUSTER = AwsClusterInfo(
    "prod", "eu-west-1", "https://api.example.com", "Q0E=", "1.33", dns_ip="10.0.0.10", service_cidr="10.0.0.0/16"
)
FACTS = KubeletTypeFacts("m5.xlarge", 4, 16384, 4, 15, 58)
FAMILIES = ("AL2", "AL2023", "Bottlerocket", "Windows2019", "Windows2022", "Windows2025")
SYSTEM_LABEL = "karpenter.sh/do-not-sync-taints"
MIME = """MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="BOUND"

--BOUND
Content-Type: text/cloud-config; charset="us-ascii"
X-Own: kept

packages: [htop]

--BOUND
Content-Type: text/x-shellscript; charset="us-ascii"

#!/bin/sh
echo one
--BOUND--
"""

Parts = list[tuple[str, str]]


def given(family: str, custom: str = "", **settings: object) -> BootstrapOptions:
    return BootstrapOptions(
        cluster=CLUSTER,
        family=family,
        labels={"karpenter.sh/capacity-type": "spot", "team": "a"},
        taints=(Taint(key="dedicated", value="gpu", effect="NoSchedule"),),
        kubelet_spec=settings,
        kubelet_settings=resolve_kubelet_settings(settings, FACTS, expressions=True),
        max_pods=58,
        custom_user_data=custom,
    )


def rendered(bootstrap: BootstrapOptions) -> str:
    return render_user_data(bootstrap).decode()


def parts(text: str) -> Parts:
    """Types and texts of a MIME message's parts, as Python's own parser finds them."""
    message = message_from_string(text)
    assert message["MIME-Version"] == "1.0"
    assert message.get_boundary() == "//"
    assert not message.defects
    payload = message.get_payload()
    assert isinstance(payload, list)
    return [(str(part["Content-Type"]), str(part.get_payload())) for part in payload]


def command(script: str) -> list[str]:
    """The words of the script's call of the image's bootstrap script."""
    assert script.startswith("#!/bin/bash -xe\n")
    _, _, call = script.partition("/etc/eks/")
    return shlex.split("/etc/eks/" + call.replace("\\\n", ""))


def al2_command(bootstrap: BootstrapOptions) -> list[str]:
    return command(parts(rendered(bootstrap))[-1][1])


def after(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def node_config(bootstrap: BootstrapOptions) -> dict[str, dict[str, dict[str, object]]]:
    kind, text = parts(rendered(bootstrap))[-1]
    assert kind == "application/node.eks.aws"
    assert text.startswith("#")
    safe_load: dict[str, dict[str, dict[str, object]]] = yaml.safe_load(text)
    return safe_load


def settings_of(bootstrap: BootstrapOptions) -> dict[str, dict[str, object]]:
    settings: dict[str, dict[str, object]] = tomllib.loads(rendered(bootstrap))["settings"]
    return settings


def kubernetes(bootstrap: BootstrapOptions) -> dict[str, object]:
    return settings_of(bootstrap)["kubernetes"]


# -- common to all ---------------------------------------------------------------------------------------------------------


def labels_of(bootstrap: BootstrapOptions) -> str:
    match bootstrap.family:
        case "AL2023":
            flags = node_config(bootstrap)["spec"]["kubelet"]["flags"]
            assert isinstance(flags, list)
            return str(flags[0])
        case "Bottlerocket":
            result = kubernetes(bootstrap)["node-labels"]
            assert isinstance(result, dict)
            return '--node-labels="' + ",".join(f"{key}={value}" for key, value in result.items()) + '"'
        case _:
            text = rendered(bootstrap)
            return text[text.index("--node-labels") : text.index(" --register-with-taints")]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kubelet_gets_no_labels_of_protected_domains(family: str) -> None:
    """AWS-T225, AWS-220."""
    labels = {"team": "a", "kubernetes.io/x": "y", "node-restriction.kubernetes.io/z": "q", "foo.k8s.io/b": "c"}
    labels |= {"notkubernetes.io/k": "v", "kubernetes.io": "bare"}
    actual = labels_of(dataclasses.replace(given(family), labels=labels))
    assert actual == f'--node-labels="{SYSTEM_LABEL}=true,kubernetes.io=bare,notkubernetes.io/k=v,team=a"'


@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_begins_with_the_taint_of_the_unregistered(family: str) -> None:
    """AWS-T235, AWS-221."""
    text = rendered(dataclasses.replace(given(family), taints=()))
    assert "karpenter.sh/unregistered" in text
    own = Taint(key="karpenter.sh/unregistered", effect="NoExecute")
    assert rendered(dataclasses.replace(given(family), taints=(own,))) == text


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_input_gives_the_same_bytes_whatever_the_order_of_maps(family: str) -> None:
    maps: dict[str, dict[str, str]] = {
        "kubeReserved": {"cpu": "100m", "memory": "1Gi", "pid": "100"},
        "evictionHard": {"memory.available": "5%", "nodefs.available": "10%"},
    }
    backwards = {name: dict(reversed(values.items())) for name, values in reversed(maps.items())}
    first, second = given(family, **maps), given(family, **backwards)
    second = dataclasses.replace(second, labels=dict(reversed(second.labels.items())))
    assert render_user_data(first) == render_user_data(second)


def test_custom_images_get_their_owners_bytes() -> None:
    """AWS-T234, AWS-261."""
    for text in ("#!/bin/bash\necho", "\r\n${CLUSTER_NAME} ü\n", ""):
        assert render_user_data(given("Custom", text)) == text.encode()


def test_a_notice_is_logged_once_the_size_is_near_the_limit() -> None:
    """AWS-225."""
    with capture_logs() as lines:
        assert user_data_size(b"x" * (USER_DATA_WARNING_BYTES - 1)) == USER_DATA_WARNING_BYTES - 1
        assert lines == []
        assert user_data_size(b"x" * USER_DATA_WARNING_BYTES) == USER_DATA_WARNING_BYTES
    (line,) = lines
    assert (line["userdata-bytes"], line["warn-threshold"], line["limit"]) == (14745, 14745, 16384)
    assert USER_DATA_LIMIT_BYTES == 16384


# -- AL2 -------------------------------------------------------------------------------------------------------------------


def test_al2_without_custom_data_is_one_shell_part() -> None:
    """AWS-T220, AWS-243."""
    ((kind, script),) = parts(rendered(given("AL2")))
    assert kind == 'text/x-shellscript; charset="us-ascii"'
    words = command(script)
    assert words[:2] == ["/etc/eks/bootstrap.sh", "prod"]
    assert after(words, "--apiserver-endpoint") == "https://api.example.com"
    assert after(words, "--b64-cluster-ca") == "Q0E="
    assert after(words, "--dns-cluster-ip") == "10.0.0.10"
    assert after(words, "--use-max-pods") == "false"
    assert "--ip-family" not in words
    assert "--local-disks" not in words


def test_al2_puts_a_plain_script_first() -> None:
    """AWS-T221."""
    custom = "#!/bin/bash\necho hello\n"
    (first, _) = parts(rendered(given("AL2", custom)))
    assert first == ('text/x-shellscript; charset="us-ascii"', custom)


@pytest.mark.parametrize("family", ["AL2", "AL2023"])
def test_custom_mime_parts_come_first_with_their_headers(family: str) -> None:
    """AWS-T222, AWS-245."""
    text = rendered(given(family, "\n" + MIME.replace("\n", "\r\n")))
    assert "\r" not in text
    actual = parts(text)
    assert len(actual) == 3
    assert actual[0] == ('text/cloud-config; charset="us-ascii"', "packages: [htop]\n")
    assert actual[1] == ('text/x-shellscript; charset="us-ascii"', "#!/bin/sh\necho one")
    assert "X-Own: kept" in text


@pytest.mark.parametrize("end", ["", "--BOUND", "--BOUND\n\n", "--BOUND\n--BOUND--\n"])
@pytest.mark.parametrize("family", ["AL2", "AL2023"])
def test_mime_without_a_closing_marker_has_no_empty_part(family: str, end: str) -> None:
    """AWS-242: cloud-init refuses a part without a type."""
    text = rendered(given(family, MIME.replace("--BOUND--\n", end)))
    assert len(parts(text)) == 3


@pytest.mark.parametrize("family", ["AL2", "AL2023"])
@pytest.mark.parametrize(
    ("custom", "words"),
    [
        pytest.param("Content-Type: text/plain\n\nhello", "multipart", id="AWS-242 not multipart"),
        pytest.param("MIME-Version: 1.0\n\nhello", "multipart", id="AWS-242 no type"),
        pytest.param('Content-Type: multipart/mixed; boundary="B"\n\nhello', "boundary", id="no part"),
        pytest.param('Content-Type: multipart/mixed; boundary="B"\n\n--B\n', "boundary", id="an empty part"),
        pytest.param("#!/bin/sh\n--//\n", "--//", id="our own boundary inside"),
    ],
)
def test_mime_that_cannot_be_joined_is_an_error(family: str, custom: str, words: str) -> None:
    with pytest.raises(UserDataError, match=words):
        render_user_data(given(family, custom))


def test_al2_of_an_ipv6_cluster_is_told_so() -> None:
    """AWS-T223."""
    words = al2_command(dataclasses.replace(given("AL2"), cluster=dataclasses.replace(CLUSTER, dns_ip="fd00::a")))
    assert after(words, "--ip-family") == "ipv6"
    assert after(words, "--dns-cluster-ip") == "fd00::a"


def test_al2_of_a_cluster_without_known_authority_and_dns_leaves_them_out() -> None:
    """AWS-243."""
    cluster = dataclasses.replace(CLUSTER, ca_bundle="", dns_ip="")
    words = al2_command(dataclasses.replace(given("AL2"), cluster=cluster))
    assert "--b64-cluster-ca" not in words
    assert "--dns-cluster-ip" not in words


def test_al2_makes_an_array_of_its_disks() -> None:
    """AWS-243."""
    assert after(al2_command(dataclasses.replace(given("AL2"), raid0=True)), "--local-disks") == "raid0"


def test_flags_stand_in_a_fixed_order() -> None:
    """AWS-237, AWS-T224, AWS-T236."""
    settings = {
        "cpuCFSQuota": False,
        "imageGCLowThresholdPercent": 70,
        "imageGCHighThresholdPercent": 80,
        "evictionMaxPodGracePeriod": 60,
        "evictionSoftGracePeriod": {"memory.available": "2m"},
        "evictionSoft": {"memory.available": "10%"},
        "evictionHard": {"nodefs.available": "10%", "memory.available": "5%"},
        "kubeReserved": {"memory": "memory_mib / 20", "cpu": "100m"},
        "systemReserved": {"cpu": "50m"},
        "podsPerCore": 4,
        "maxPods": 10,
    }
    words = al2_command(given("AL2", **settings))
    assert after(words, "--kubelet-extra-args").split(" --") == [
        f'--node-labels="karpenter.sh/capacity-type=spot,{SYSTEM_LABEL}=true,team=a"',
        'register-with-taints="dedicated=gpu:NoSchedule,karpenter.sh/unregistered:NoExecute"',
        "max-pods=10",
        "pods-per-core=4",
        'system-reserved="cpu=50m"',
        'kube-reserved="cpu=100m,memory=832Mi"',
        'eviction-hard="memory.available<5%,nodefs.available<10%"',
        'eviction-soft="memory.available<10%"',
        'eviction-soft-grace-period="memory.available=2m0s"',
        "eviction-max-pod-grace-period=60",
        "image-gc-high-threshold=80",
        "image-gc-low-threshold=70",
        "cpu-cfs-quota=false",
    ]


def test_without_settings_only_labels_taints_and_pods_are_flags() -> None:
    """AWS-223, AWS-224: the image reckons its own reservations."""
    flags = after(al2_command(given("AL2")), "--kubelet-extra-args")
    assert [flag.partition("=")[0] for flag in flags.split()] == [
        "--node-labels",
        "--register-with-taints",
        "--max-pods",
    ]
    assert flags.endswith("--max-pods=58")


def test_the_owners_dns_server_wins_over_the_clusters() -> None:
    """AWS-222."""
    assert after(al2_command(given("AL2", clusterDNS=["10.0.100.10"])), "--dns-cluster-ip") == "10.0.100.10"


# -- AL2023 ----------------------------------------------------------------------------------------------------------------


def test_al2023_tells_the_cluster_and_the_kubelet_in_a_node_config() -> None:
    """AWS-247."""
    actual = node_config(dataclasses.replace(given("AL2023"), raid0=True))
    assert (actual["apiVersion"], actual["kind"]) == ("node.eks.aws/v1alpha1", "NodeConfig")
    assert actual["spec"] == {
        "cluster": {
            "name": "prod",
            "apiServerEndpoint": "https://api.example.com",
            "certificateAuthority": "Q0E=",
            "cidr": "10.0.0.0/16",
        },
        "instance": {"localStorage": {"strategy": "RAID0"}},
        "kubelet": {
            "config": {
                "maxPods": 58,
                "clusterDNS": ["10.0.0.10"],
                "registerWithTaints": [
                    {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},
                    {"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
                ],
            },
            "flags": [f'--node-labels="karpenter.sh/capacity-type=spot,{SYSTEM_LABEL}=true,team=a"'],
        },
    }


def test_al2023_passes_every_setting_on_and_what_expressions_come_to() -> None:
    """AWS-T227, AWS-247."""
    settings = {
        "cpuManagerPolicy": "static",
        "evictionSoftGracePeriod": {"memory.available": "2m"},
        "maxPods": "vcpus * 5",
        "kubeReserved": {"cpu": "vcpus * 10", "memory": "1Gi"},
        "systemReserved": {"cpu": "vcpus / 0"},
    }
    config = node_config(dataclasses.replace(given("AL2023", **settings), max_pods=20))["spec"]["kubelet"]["config"]
    assert isinstance(config, dict)
    assert config["cpuManagerPolicy"] == "static"
    assert config["evictionSoftGracePeriod"] == {"memory.available": "2m"}
    assert config["maxPods"] == 20
    assert config["kubeReserved"] == {"cpu": "40m", "memory": "1Gi"}
    assert "systemReserved" not in config


@pytest.mark.parametrize(
    ("custom", "kind"),
    [
        pytest.param(
            "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\n", "application/node.eks.aws", id="AWS-T226"
        ),
        pytest.param("a: 1\n---\nb: 2\n", "application/node.eks.aws", id="two documents"),
        pytest.param("#!/bin/bash\necho hello\n", "text/x-shellscript", id="AWS-246 a script"),
        pytest.param("word", "text/x-shellscript", id="AWS-246 one word"),
        pytest.param("a: [", "text/x-shellscript", id="broken YAML"),
        pytest.param("a: 2025-99-99", "text/x-shellscript", id="a date that is none"),
        pytest.param("[" * 5000, "text/x-shellscript", id="nested beyond reason"),
    ],
)
def test_al2023_takes_the_owners_text_for_what_it_looks_like(custom: str, kind: str) -> None:
    (own, generated) = parts(rendered(given("AL2023", custom)))
    assert own[0].startswith(kind)
    assert own[1] == custom
    assert generated[0] == "application/node.eks.aws"


def test_al2023_needs_the_service_addresses() -> None:
    """AWS-T228, AWS-248."""
    with pytest.raises(NodeClassNotReady, match="service CIDR"):
        render_user_data(dataclasses.replace(given("AL2023"), cluster=dataclasses.replace(CLUSTER, service_cidr="")))


# -- Bottlerocket ----------------------------------------------------------------------------------------------------------


def test_bottlerocket_is_told_by_settings() -> None:
    """AWS-252."""
    settings = {
        "systemReserved": {"cpu": "50m"},
        "kubeReserved": {"memory": "memory_mib / 20"},
        "evictionHard": {"memory.available": "5%"},
        "evictionSoft": {"memory.available": "10%"},
        "evictionSoftGracePeriod": {"memory.available": "90s"},
        "evictionMaxPodGracePeriod": 60,
        "imageGCHighThresholdPercent": 80,
        "imageGCLowThresholdPercent": 70,
        "cpuCFSQuota": False,
    }
    assert kubernetes(given("Bottlerocket", **settings)) == {
        "cluster-name": "prod",
        "api-server": "https://api.example.com",
        "cluster-certificate": "Q0E=",
        "cluster-dns-ip": "10.0.0.10",
        "max-pods": 58,
        "system-reserved": {"cpu": "50m"},
        "kube-reserved": {"memory": "832Mi"},
        "eviction-hard": {"memory.available": "5%"},
        "eviction-soft": {"memory.available": "10%"},
        "eviction-soft-grace-period": {"memory.available": "1m30s"},
        "eviction-max-pod-grace-period": 60,
        "image-gc-high-threshold-percent": "80",
        "image-gc-low-threshold-percent": "70",
        "cpu-cfs-quota-enforced": False,
        "node-labels": {"karpenter.sh/capacity-type": "spot", SYSTEM_LABEL: "true", "team": "a"},
        "node-taints": {"dedicated": ["gpu:NoSchedule"], "karpenter.sh/unregistered": [":NoExecute"]},
    }


def test_bottlerocket_replaces_the_owners_taints_and_merges_his_labels() -> None:
    """AWS-T229, AWS-253."""
    custom = """
        [settings.kubernetes]
        cluster-name = "other"
        max-pods = 3
        [settings.kubernetes.node-taints]
        mine = ["x:NoSchedule"]
        [settings.kubernetes.node-labels]
        mine = "x"
        team = "b"
    """
    actual = kubernetes(given("Bottlerocket", custom))
    assert actual["node-taints"] == {"dedicated": ["gpu:NoSchedule"], "karpenter.sh/unregistered": [":NoExecute"]}
    assert actual["node-labels"] == {
        "karpenter.sh/capacity-type": "spot",
        SYSTEM_LABEL: "true",
        "mine": "x",
        "team": "a",
    }
    assert (actual["cluster-name"], actual["max-pods"]) == ("prod", 58)


def test_bottlerocket_keeps_what_the_owner_set_and_the_class_did_not() -> None:
    """AWS-T230, AWS-251, AWS-254; keys nobody here knows stay too (Beyond)."""
    custom = """
        [settings]
        motd = "hi"
        [settings.ntp]
        time-servers = ["169.254.169.123"]
        [settings.kubernetes]
        cpu-manager-policy = "static"
        cluster-dns-ip = "169.254.20.10"
        not-invented-yet = 1
        [settings.kubernetes.eviction-hard]
        "memory.available" = "15%"
        [settings.bootstrap-commands.mine]
        commands = [["apiclient", "get"]]
        mode = "once"
    """
    settings = settings_of(dataclasses.replace(given("Bottlerocket", custom), raid0=True))
    assert settings["motd"] == "hi"
    assert settings["ntp"] == {"time-servers": ["169.254.169.123"]}
    assert settings["kubernetes"]["cpu-manager-policy"] == "static"
    assert settings["kubernetes"]["cluster-dns-ip"] == "169.254.20.10"
    assert settings["kubernetes"]["not-invented-yet"] == 1
    assert settings["kubernetes"]["eviction-hard"] == {"memory.available": "15%"}
    assert set(settings["bootstrap-commands"]) == {"mine", "000-mount-instance-storage"}
    by_class = kubernetes(given("Bottlerocket", custom, clusterDNS=["10.9.9.9"], evictionHard={"pid.available": "5%"}))
    assert by_class["cluster-dns-ip"] == "10.9.9.9"
    assert by_class["eviction-hard"] == {"pid.available": "5%"}


@pytest.mark.parametrize(
    ("version", "is_told"),
    [("v1.45.0", True), ("v1.46.0", False), ("latest", False), ("1.100.2", False), ("v1.46", True), ("", True)],
)
def test_older_bottlerocket_is_told_which_directories_to_mount(version: str, is_told: bool) -> None:
    """AWS-T231, AWS-255."""
    settings = settings_of(dataclasses.replace(given("Bottlerocket"), raid0=True, image_version=version))
    directories = ["--dirs", "/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods"] if is_told else []
    assert settings["bootstrap-commands"]["000-mount-instance-storage"] == {
        "commands": [
            ["apiclient", "ephemeral-storage", "init"],
            ["apiclient", "ephemeral-storage", "bind", *directories],
        ],
        "mode": "always",
        "essential": True,
    }


@pytest.mark.parametrize(
    ("custom", "words"),
    [
        pytest.param("not toml {", "TOML", id="AWS-T232"),
        pytest.param("settings = 1", "settings", id="settings are no table"),
        pytest.param("a = " + "[" * 16000, "TOML", id="lists nested beyond reason"),
        pytest.param("a." * 7000 + "b = 1", "nested", id="tables nested beyond reason"),
        pytest.param('[settings]\nkubernetes = "x"', "kubernetes", id="kubernetes is no table"),
        pytest.param('[settings.kubernetes]\nnode-labels = "x"', "node-labels", id="labels are no table"),
    ],
)
def test_bottlerocket_refuses_what_is_no_toml_or_no_settings(custom: str, words: str) -> None:
    with pytest.raises(UserDataError, match=words):
        render_user_data(given("Bottlerocket", custom))


# -- Windows ---------------------------------------------------------------------------------------------------------------


def test_windows_runs_the_owners_commands_and_then_the_images_own_script() -> None:
    """AWS-T233, AWS-258, AWS-259: instanceStorePolicy is ignored, and the service CIDR saves a call of the EKS API."""
    text = rendered(dataclasses.replace(given("Windows2022", "Write-Host 1", clusterDNS=["10.0.100.10"]), raid0=True))
    head, own, call, tail = text.split("\n")
    assert (head, own, tail) == ("<powershell>", "Write-Host 1", "</powershell>")
    assert call.startswith("& \"$env:ProgramFiles\\Amazon\\EKS\\Start-EKSBootstrap.ps1\" -EKSClusterName 'prod' ")
    for words in (
        "-APIServerEndpoint 'https://api.example.com'",
        "-Base64ClusterCA 'Q0E='",
        "-KubeletExtraArgs '--node-labels=\"karpenter.sh/capacity-type=spot",
        "-DNSClusterIP '10.0.100.10'",
        "-ServiceCIDR '10.0.0.0/16'",
    ):
        assert words in call


def test_windows_of_a_cluster_of_which_little_is_known() -> None:
    cluster = dataclasses.replace(CLUSTER, ca_bundle="", dns_ip="", service_cidr="")
    text = rendered(dataclasses.replace(given("Windows2019"), cluster=cluster))
    assert not any(word in text for word in ("-Base64ClusterCA", "-DNSClusterIP", "-ServiceCIDR"))
    assert text.count("\n") == 2


def test_quotes_in_names_stay_inside_their_word() -> None:
    cluster = dataclasses.replace(CLUSTER, name="it's")
    assert al2_command(dataclasses.replace(given("AL2"), cluster=cluster))[1] == "it's"
    assert "-EKSClusterName 'it''s'" in rendered(dataclasses.replace(given("Windows2022"), cluster=cluster))
