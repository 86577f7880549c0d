"""Karpenter in Python: a Kubernetes node autoscaler that decides by price and explains itself.

The names below are the Python interface (``karpenter.python_api``). They are imported on first use, so that ``import karpenter``
and the start of the command line stay cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from karpenter.version import __version__ as __version__

if TYPE_CHECKING:
    from karpenter.python_api import (
        ClusterError,
        Explanation,
        InputError,
        LoadedObjects,
        LoadOptions,
        Plan,
        PlannedNode,
        PodsOnNode,
        UnscheduledPod,
        explain,
        load,
        load_cluster,
        load_text,
        plan,
    )

__all__ = [
    "load",
    "load_text",
    "load_cluster",
    "plan",
    "explain",
    "LoadOptions",
    "LoadedObjects",
    "Plan",
    "PlannedNode",
    "PodsOnNode",
    "UnscheduledPod",
    "Explanation",
    "InputError",
    "ClusterError",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'karpenter' has no attribute {name!r}")
    return getattr(import_module("karpenter.python_api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
