"""How the stand-ins of this room watch: the production informer, without the random spread of its retries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube.informer import Informer, Key
from karpenter.kube.protocol import Reader

T = TypeVar("T", bound=Wire)


def following(reader: Reader, kind: Kind[T], handler: Callable[[T | None, T | None], None]) -> Informer[T]:
    """All objects of a kind; the handler gets every change as the object before and after. It must not block."""
    informer = Informer(reader, kind, jitter=_no_jitter)
    informer.subscribe(handler)
    return informer


def _no_jitter() -> float:
    return 0.0


def key_of(metadata: ObjectMeta) -> Key:
    """Where an object lives."""
    return Key(metadata.namespace, metadata.name)
