"""What events are about, as a ``Herald`` takes it: the kinds without the types of their objects."""

from __future__ import annotations

from typing import cast

from karpenter.api import kinds
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire

CLAIM = cast("Kind[Wire]", kinds.NODE_CLAIM)
NODE = cast("Kind[Wire]", kinds.NODE)
POOL = cast("Kind[Wire]", kinds.NODE_POOL)
