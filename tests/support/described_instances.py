"""Instances as EC2 describes them, for tests of launches."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from karpenter.model import labels
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_types import tag_list
from karpenter.providers.aws.ec2_descriptions import (
    InstanceInfo,
    InstancePlacement,
    InstanceState,
)
from support.launch_environment import START, LaunchEnvironment

OURS = {labels.NODE_POOL: "default", aws_labels.NODE_CLASS: "default", aws_labels.CLUSTER_TAG: "c"}


POOL_ONLY = {labels.NODE_POOL: "default", aws_labels.CLUSTER_TAG: "c"}


def info(name: str = "i-1", age: float = 0.0, own: dict[str, str] = OURS, **more: Any) -> InstanceInfo:
    defaults: dict[str, Any] = {
        "state": InstanceState(name="running"),
        "placement": InstancePlacement(availability_zone="a"),
        "launch_time": START - timedelta(seconds=age),
        "tags": tag_list(own),
    }
    return InstanceInfo(instance_id=name, **{**defaults, **more})


def put(environment: LaunchEnvironment, *infos: InstanceInfo) -> None:
    for info_ in infos:
        environment.ec2.put(info_)
