"""Pods that spread, and what a plan makes of them."""

from __future__ import annotations

from karpenter.model import labels
from support.builders import (
    ANY_CAPACITY,
    node_pool,
    wanted,
)

ZONE, HOST, ARCH, KIND = labels.ZONE, labels.HOSTNAME, labels.ARCH, labels.CAPACITY_TYPE
RACK = "example.com/rack"


def in_zones(*zones: str, **spec: object) -> object:
    return node_pool(requirements=[ANY_CAPACITY, wanted(ZONE, "In", *zones)], **spec)
