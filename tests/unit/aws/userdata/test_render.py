"""User data of every AMI family, parsed as the boot program of the image does."""

from __future__ import annotations

import dataclasses

import pytest
from structlog.testing import capture_logs

from karpenter.api.scheduling_constraints import Taint
from karpenter.providers.aws.userdata import UserDataError, render_user_data
from karpenter.providers.aws.userdata.user_data import USER_DATA_LIMIT_BYTES, USER_DATA_WARNING_BYTES, user_data_size
from karpenter.providers.contract import NodeClassNotReady
from support.user_data import (
    CLUSTER,
    FAMILIES,
    MIME,
    SYSTEM_LABEL,
    after,
    al2_command,
    command,
    given,
    labels_of,
    node_config,
    parts,
    rendered,
)

# -- common to all ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kubelet_gets_no_labels_of_restricted_domains(family: str) -> None:
    """AWS-T225, AWS-220."""
    labels = {"team": "a", "kubernetes.io/x": "y", "node-restriction.kubernetes.io/z": "q", "foo.k8s.io/b": "c"}
    labels |= {"notkubernetes.io/k": "v", "kubernetes.io": "bare"}
    actual = labels_of(dataclasses.replace(given(family), labels=labels))
    assert actual == f'--node-labels="{SYSTEM_LABEL}=true,kubernetes.io=bare,notkubernetes.io/k=v,team=a"'


@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_starts_with_the_unregistered_taint(family: str) -> None:
    """AWS-T235, AWS-221."""
    text = rendered(dataclasses.replace(given(family), taints=()))
    assert "karpenter.sh/unregistered" in text
    own = Taint(key="karpenter.sh/unregistered", effect="NoExecute")
    assert rendered(dataclasses.replace(given(family), taints=(own,))) == text


@pytest.mark.parametrize("family", FAMILIES)
def test_user_data_does_not_depend_on_the_order_of_maps(family: str) -> None:
    maps: dict[str, dict[str, str]] = {
        "kubeReserved": {"cpu": "100m", "memory": "1Gi", "pid": "100"},
        "evictionHard": {"memory.available": "5%", "nodefs.available": "10%"},
    }
    backwards = {name: dict(reversed(values.items())) for name, values in reversed(maps.items())}
    first, second = given(family, **maps), given(family, **backwards)
    second = dataclasses.replace(second, labels=dict(reversed(second.labels.items())))
    assert render_user_data(first) == render_user_data(second)


def test_custom_images_get_their_user_data_unchanged() -> None:
    """AWS-T234, AWS-261."""
    for text in ("#!/bin/bash\necho", "\r\n${CLUSTER_NAME} ü\n", ""):
        assert render_user_data(given("Custom", text)) == text.encode()


@pytest.mark.parametrize("text", ["", "echo hello", "#!/bin/bash\n/etc/eks/bootstrap.sh shop\n"])
def test_ubuntu_joins_with_the_bootstrap_script_of_eks(text: str) -> None:
    """API-860: as on AL2, unless the custom script does the whole bootstrap."""
    assert rendered(given("Ubuntu", text)) == rendered(given("AL2", text))
    assert "/etc/eks/bootstrap.sh" in rendered(given("Ubuntu", text))


def test_ubuntu_runs_a_complete_custom_script_unchanged() -> None:
    """API-860, API-A41."""
    text = "#!/bin/bash\nkubeadm join 10.0.0.10:6443\n"
    assert render_user_data(given("Ubuntu", text)) == text.encode()


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
def test_invalid_mime_is_an_error(family: str, custom: str, words: str) -> None:
    with pytest.raises(UserDataError, match=words):
        render_user_data(given(family, custom))


def test_al2_of_an_ipv6_cluster_gets_the_ip_family() -> None:
    """AWS-T223."""
    words = al2_command(dataclasses.replace(given("AL2"), cluster=dataclasses.replace(CLUSTER, dns_ip="fd00::a")))
    assert after(words, "--ip-family") == "ipv6"
    assert after(words, "--dns-cluster-ip") == "fd00::a"


def test_al2_leaves_out_an_unknown_certificate_authority_and_dns_address() -> None:
    """AWS-243."""
    cluster = dataclasses.replace(CLUSTER, ca_bundle="", dns_ip="")
    words = al2_command(dataclasses.replace(given("AL2"), cluster=cluster))
    assert "--b64-cluster-ca" not in words
    assert "--dns-cluster-ip" not in words


def test_al2_configures_raid0_of_local_disks() -> None:
    """AWS-243."""
    assert after(al2_command(dataclasses.replace(given("AL2"), raid0=True)), "--local-disks") == "raid0"


def test_flags_have_a_fixed_order() -> None:
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
    """AWS-223, AWS-224: the image computes its own reservations."""
    flags = after(al2_command(given("AL2")), "--kubelet-extra-args")
    assert [flag.partition("=")[0] for flag in flags.split()] == [
        "--node-labels",
        "--register-with-taints",
        "--max-pods",
    ]
    assert flags.endswith("--max-pods=58")


def test_the_dns_server_of_the_class_overrides_that_of_the_cluster() -> None:
    """AWS-222."""
    assert after(al2_command(given("AL2", clusterDNS=["10.0.100.10"])), "--dns-cluster-ip") == "10.0.100.10"


# -- AL2023 ----------------------------------------------------------------------------------------------------------------


def test_al2023_has_cluster_and_kubelet_settings_in_a_node_config() -> None:
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


def test_al2023_passes_on_every_setting_with_evaluated_expressions() -> None:
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
def test_al2023_detects_the_type_of_custom_user_data(custom: str, kind: str) -> None:
    (own, generated) = parts(rendered(given("AL2023", custom)))
    assert own[0].startswith(kind)
    assert own[1] == custom
    assert generated[0] == "application/node.eks.aws"


def test_al2023_needs_the_service_cidr() -> None:
    """AWS-T228, AWS-248."""
    with pytest.raises(NodeClassNotReady, match="service CIDR"):
        render_user_data(dataclasses.replace(given("AL2023"), cluster=dataclasses.replace(CLUSTER, service_cidr="")))
