"""Whether two versions of a watched object differ in more than their resource version.

A kubelet rewrites its Node every five minutes, and other writers store equal content again. The caches store such a version,
since later writes need its resource version, and no controller reconciles because of it.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from karpenter.api.meta import ObjectMeta


class WatchedObject(Protocol):
    """The parts of an object that changes are compared by."""

    @property
    def metadata(self) -> ObjectMeta:
        """Name, version, labels and the like."""

    @property
    def spec(self) -> object:
        """What is wanted."""

    @property
    def status(self) -> object:
        """What is."""


def is_rewritten(old: WatchedObject, new: WatchedObject) -> bool:
    """Whether all decoded fields of two versions are equal, except for the resource version."""
    if (old.spec, old.status) != (new.spec, new.status):
        return False
    version = old.metadata.resource_version
    return msgspec.structs.replace(new.metadata, resource_version=version) == old.metadata
