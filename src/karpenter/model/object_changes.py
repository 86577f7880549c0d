"""Whether a new version of an object says anything new.

A kubelet rewrites its Node every five minutes, and writers repeat what is stored. Such a version is stored, since later writes
name it, and nothing is decided anew because of it.
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
    """Whether two versions differ in nothing but their version, of all that is decoded of them."""
    if (old.spec, old.status) != (new.spec, new.status):
        return False
    version = old.metadata.resource_version
    return msgspec.structs.replace(new.metadata, resource_version=version) == old.metadata
