"""Policies: the settings and NodePool fields that a study compares.

    profile: lean
    settings: {minimum-node-age: 10m, packing: classic}
    consolidateAfter: 5m
    consolidationPolicy: WhenEmptyOrUnderutilized
    budgets: [{nodes: 20%}]

``settings`` are flags of ``karpenter run``; the other fields replace those of every NodePool. Packaged: ``lean`` and
``karpenter``, the two profiles, and ``empty-only``, which moves no pod to save money.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import yaml

from karpenter.api.karpenter import Budget, NodePool
from karpenter.model import durations
from karpenter.model.setting_kinds import SettingError
from karpenter.settings import SETTINGS, Settings, resolve_settings
from karpenter.simulator.workload import WorkloadError
from karpenter.simulator.yaml_lines import decode_yaml, line_of, read_file


class _BudgetText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: str


class PolicyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The fields of a policy file."""

    profile: Literal["lean", "karpenter"] = "lean"
    settings: dict[str, str] = {}
    consolidate_after: str | None = None
    consolidation_policy: Literal["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"] | None = None
    budgets: list[_BudgetText] | None = None


_PACKAGED = {
    "lean": PolicyFile(),
    "karpenter": PolicyFile(profile="karpenter"),
    "empty-only": PolicyFile(consolidation_policy="WhenEmpty"),
}


@dataclass(frozen=True)
class Policy:
    """A named policy: resolved settings, and what it changes of every NodePool."""

    name: str
    settings: Settings
    file: PolicyFile

    def applied_to(self, pool: NodePool) -> NodePool:
        """The NodePool under this policy."""
        changes: dict[str, object] = {}
        if self.file.consolidate_after is not None:
            changes["consolidate_after"] = self.file.consolidate_after
        if self.file.consolidation_policy is not None:
            changes["consolidation_policy"] = self.file.consolidation_policy
        if self.file.budgets is not None:
            changes["budgets"] = tuple(Budget(nodes=budget.nodes) for budget in self.file.budgets)
        disruption = msgspec.structs.replace(pool.spec.disruption, **changes)
        return msgspec.structs.replace(pool, spec=msgspec.structs.replace(pool.spec, disruption=disruption))


def read_policy(name: str) -> Policy:
    """A packaged policy, or one in a file. Raises ``WorkloadError``."""
    if name in _PACKAGED:
        return _resolved(name, _PACKAGED[name], None, name)
    if not Path(name).suffix and not Path(name).exists():
        raise WorkloadError(f"there is no policy {name!r}; choose {', '.join(_PACKAGED)}, or a YAML file")
    content = read_file(Path(name))
    file = decode_yaml(content, name, PolicyFile)
    return _resolved(Path(name).stem, file, yaml.compose(content, Loader=yaml.SafeLoader), name)


def resolved_policy(name: str, file: PolicyFile) -> Policy:
    """The policy of a file. Raises ``DurationError`` for ``consolidateAfter``, ``SettingError`` for a setting."""
    if file.consolidate_after not in (None, "Never"):
        durations.parse_duration(file.consolidate_after or "")
    flags: dict[str, str | None] = {"profile": file.profile}
    flags |= {key.replace("-", "_"): value for key, value in file.settings.items()}
    return Policy(name, resolve_settings(flags, {}), file)


def _resolved(name: str, file: PolicyFile, root: yaml.Node | None, source: str) -> Policy:
    for key in file.settings:
        if key.replace("-", "_") not in SETTINGS:
            raise WorkloadError(
                f"{source}: line {line_of(root, f'$.settings.{key}')}: there is no setting {key!r}; "
                "`karpenter run --help` lists them"
            )
    try:
        return resolved_policy(name, file)
    except durations.DurationError as error:
        raise WorkloadError(f"{source}: line {line_of(root, '$.consolidateAfter')}: {error}") from None
    except SettingError as error:
        raise WorkloadError(f"{source}: line {line_of(root, '$.settings')}: {error}") from None
