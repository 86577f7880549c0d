"""Why a pod was not placed, as data: a category, the pool it concerns and the facts. ``explain`` makes sentences of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from karpenter.api.core import Taint
from karpenter.decide.obstacles import Breakdown, Miss
from karpenter.model.requirements import Incompatibility, Requirements
from karpenter.model.resources import Resources


class Skip(StrEnum):
    """Why a NodePool takes no part in a pass (SCH-110, SCH-115, SCH-122)."""

    STATIC = "static"
    DELETING = "deleting"
    NOT_READY = "not-ready"
    UNRESOLVED = "unresolved"
    NO_TYPES = "no-types"
    FILTERED = "filtered"
    FILTERED_MIN_VALUES = "filtered-min-values"


class Category(StrEnum):
    """What stood in the way (SCH-860; the ``types-`` ones are the rows of SCH-334)."""

    POD = "pod"
    TOPOLOGY = "topology"
    VOLUME = "volume"
    HOST_PORT = "host-port"
    DEVICE = "device"
    NO_POOL = "no-pool"
    SKIPPED_POOL = "skipped-pool"
    NO_TYPES = "no-types"
    LIMITS = "limits"
    TAINT = "taint"
    REQUIREMENTS = "requirements"
    MIN_VALUES = "min-values"
    TYPES_NOTHING = "types-nothing"
    TYPES_REQUIREMENTS_RESOURCES = "types-requirements-or-resources"
    TYPES_REQUIREMENTS_OFFERING = "types-requirements-or-offering"
    TYPES_RESOURCES_OFFERING = "types-resources-or-offering"
    TYPES_REQUIREMENTS = "types-requirements"
    TYPES_RESOURCES = "types-resources"
    TYPES_OFFERING = "types-offering"
    TYPES_NOT_ALL_OFFERING = "types-offering-of-fitting"
    TYPES_NOT_ALL_REQUIREMENTS = "types-requirements-of-fitting"
    TYPES_NOT_ALL_RESOURCES = "types-resources-of-matching"
    TYPES_NEVER_TOGETHER = "types-never-together"


@dataclass(frozen=True)
class Reason:
    """One obstacle. Fields that do not belong to the category are empty.

    ``detail`` names what the category alone does not (an unsupported constraint, a limit, the condition of a skipped pool).
    ``min_values`` are the labels of which too few values are left. ``considered`` and the three counts are instance types: how
    many were looked at, and how many met the requirements, had enough resources, had an offering. ``transient``: others normally
    remove the obstacle within seconds, such as a volume that is being made. ``breakdown`` says what each of the pool's types
    falls to, ``miss`` what would have to change there; both only where a pool was tried.
    """

    category: Category
    node_pool: str = ""
    detail: str = ""
    skip: Skip | None = None
    min_values: tuple[str, ...] = ()
    taints: tuple[Taint, ...] = ()
    incompatible: tuple[Incompatibility, ...] = ()
    requirements: Requirements = field(default_factory=Requirements)
    requests: Resources = field(default_factory=dict)
    least_daemon_requests: Resources = field(default_factory=dict)
    most_daemon_requests: Resources = field(default_factory=dict)
    considered: int = 0
    matching: int = 0
    holding: int = 0
    offered: int = 0
    transient: bool = False
    breakdown: Breakdown | None = None
    miss: Miss | None = None
