"""User data of Bottlerocket and Windows, with and without custom data (AWS §6)."""

from __future__ import annotations

import dataclasses

import pytest

from karpenter.providers.aws.userdata import UserDataError, render_user_data
from support.user_data import (
    CLUSTER,
    SYSTEM_LABEL,
    al2_command,
    given,
    kubernetes,
    rendered,
    settings_of,
)


def test_the_settings_of_bottlerocket() -> None:
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


def test_bottlerocket_replaces_custom_taints_and_merges_custom_labels() -> None:
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


def test_bottlerocket_keeps_custom_settings_that_the_class_does_not_set() -> None:
    """AWS-T230, AWS-251, AWS-254; unknown keys stay too (Beyond)."""
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
def test_older_bottlerocket_gets_the_directories_to_mount(version: str, is_told: bool) -> None:
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
def test_bottlerocket_refuses_invalid_toml_and_unknown_tables(custom: str, words: str) -> None:
    with pytest.raises(UserDataError, match=words):
        render_user_data(given("Bottlerocket", custom))


def test_windows_runs_custom_commands_and_then_the_bootstrap_script() -> None:
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


def test_windows_without_optional_cluster_settings() -> None:
    cluster = dataclasses.replace(CLUSTER, ca_bundle="", dns_ip="", service_cidr="")
    text = rendered(dataclasses.replace(given("Windows2019"), cluster=cluster))
    assert not any(word in text for word in ("-Base64ClusterCA", "-DNSClusterIP", "-ServiceCIDR"))
    assert text.count("\n") == 2


def test_quotes_in_names_are_escaped() -> None:
    cluster = dataclasses.replace(CLUSTER, name="it's")
    assert al2_command(dataclasses.replace(given("AL2"), cluster=cluster))[1] == "it's"
    assert "-EKSClusterName 'it''s'" in rendered(dataclasses.replace(given("Windows2022"), cluster=cluster))
