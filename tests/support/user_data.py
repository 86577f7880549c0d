"""User data of AMI families, parsed into its parts."""

from __future__ import annotations

import shlex
import tomllib
from email import message_from_string

import yaml

from karpenter.api.scheduling_constraints import Taint
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.userdata import BootstrapOptions, render_user_data
from karpenter.providers.aws.userdata.kubelet_settings import KubeletTypeFacts, resolve_kubelet_settings

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
    """Content types and texts of the parts of a MIME message, by Python's parser."""
    message = message_from_string(text)
    assert message["MIME-Version"] == "1.0"
    assert message.get_boundary() == "//"
    assert not message.defects
    payload = message.get_payload()
    assert isinstance(payload, list)
    return [(str(part["Content-Type"]), str(part.get_payload())) for part in payload]


def command(script: str) -> list[str]:
    """The arguments with which the script calls the bootstrap script of the image."""
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
