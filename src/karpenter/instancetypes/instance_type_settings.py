"""The setting that names a file of instance types."""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.model import setting_kinds as kinds
from karpenter.model.setting_kinds import setting


@dataclass(frozen=True, repr=False, eq=False)
class InstanceTypeSettings:
    """Instance types."""

    instance_types_file_path: str = setting(
        kinds.FILE,
        "",
        "Instance types of the simulated provider and of plans; empty: packaged EC2 types, in plans of the plan's region.",
        "--instance-types",
        "--instance-types-file-path",
    )
