"""Search spaces of ``karpenter tune``: which settings and NodePool fields a search may change, and between which values.

    profile: lean
    parameters:
      minimum-saving-ratio: {low: 0, high: 0.5, step: 0.05}
      node-fee: {low: 0.001, high: 0.05, log: true}
      consolidateAfter: {choices: [1m, 5m, 15m, 1h]}
      budgets: {choices: ["5%", "10%", "50%"]}
      pools: {choices: [spot.yaml, on-demand.yaml]}

A parameter is an option of ``karpenter run`` without its dashes, a NodePool field of a policy file (``consolidateAfter``,
``consolidationPolicy``, ``budgets`` with the nodes of one budget), or ``pools``: files of NodePools instead of those of ``-f``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml
from msgspec import Meta

from karpenter.model import durations
from karpenter.model.setting_kinds import SettingError
from karpenter.settings import SETTINGS
from karpenter.simulator.policy import Policy, PolicyFile, resolved_policy
from karpenter.simulator.workload import WorkloadError
from karpenter.simulator.yaml_lines import decode_yaml, line_of, read_file

#: The parameter whose values are files of NodePools.
POOLS = "pools"
_FIELDS = ("consolidateAfter", "consolidationPolicy", "budgets")
_PACKAGED = "tuning_space.yaml"

#: The value of each parameter, as text.
Values = Mapping[str, str]


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The values a parameter may have: ``choices``, or numbers from ``low`` to ``high``.

    ``step``: only these multiples above ``low``; ``log``: small values are tried as densely as large ones.
    """

    choices: Annotated[list[str], Meta(min_length=2)] | None = None
    low: float | None = None
    high: float | None = None
    step: Annotated[float, Meta(gt=0)] | None = None
    log: bool = False

    def complaint(self) -> str:
        """What is wrong with it; empty for a parameter that can be searched."""
        has_range = self.low is not None and self.high is not None
        if (self.choices is None) != has_range:
            return "needs either choices, or low and high"
        if self.choices is not None:
            return "step and log belong to low and high" if self.step is not None or self.log else ""
        low, high = self.low or 0.0, self.high or 0.0
        if low >= high:
            return f"low {low:g} is not below high {high:g}"
        if self.log and low <= 0:
            return "log needs a low above 0"
        return "log and step exclude each other" if self.log and self.step is not None else ""

    def edges(self) -> tuple[str, ...]:
        """Values that must all be accepted: every choice, or both ends of the range."""
        if self.choices is not None:
            return tuple(self.choices)
        return number_text(self.low or 0.0), number_text(self.high or 0.0)


class SpaceFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a search space."""

    parameters: Annotated[dict[str, Parameter], Meta(min_length=1)]
    profile: Literal["lean", "karpenter"] = "lean"


@dataclass(frozen=True, slots=True)
class ParameterSpace:
    """A search space of valid parameters, in the order of the file."""

    profile: Literal["lean", "karpenter"]
    parameters: Mapping[str, Parameter]

    @property
    def pool_files(self) -> tuple[str, ...]:
        """The files of NodePools to choose from; empty where they are not searched."""
        pools = self.parameters.get(POOLS)
        return tuple(pools.choices or ()) if pools is not None else ()

    def policy(self, name: str, values: Values) -> Policy:
        """The policy that these values make. They are of the space, so each of them is valid."""
        return resolved_policy(name, policy_file(self.profile, values))


def number_text(value: float) -> str:
    """A number as settings take it."""
    return f"{value:.6g}"


def policy_file(profile: Literal["lean", "karpenter"], values: Values) -> PolicyFile:
    """The policy file that says the same."""
    budget = values.get("budgets")
    # The type of the field is checked by msgspec, as that of a file is.
    return msgspec.convert(
        {
            "profile": profile,
            "settings": {key: text for key, text in values.items() if key not in (*_FIELDS, POOLS)},
            "budgets": None if budget is None else [{"nodes": budget}],
            **{key: values[key] for key in ("consolidateAfter", "consolidationPolicy") if key in values},
        },
        PolicyFile,
    )


def read_space(path: Path | None) -> ParameterSpace:
    """The search space in a file, or without one the packaged space. Raises ``WorkloadError`` with the line."""
    if path is None:
        content, source = (resources.files("karpenter.simulator") / _PACKAGED).read_bytes(), _PACKAGED
    else:
        content, source = read_file(path), str(path)
    file = decode_yaml(content, source, SpaceFile)
    root = yaml.compose(content, Loader=yaml.SafeLoader)
    for name, parameter in file.parameters.items():
        complaint = _unknown_name(name) or parameter.complaint() or _refused_value(file.profile, name, parameter)
        if complaint:
            raise WorkloadError(f"{source}: line {line_of(root, f'$.parameters.{name}')}: {name}: {complaint}")
    return ParameterSpace(file.profile, file.parameters)


def _unknown_name(name: str) -> str:
    if name in (*_FIELDS, POOLS) or name.replace("-", "_") in SETTINGS:
        return ""
    return f"is no option of `karpenter run` and none of {', '.join((*_FIELDS, POOLS))}"


def _refused_value(profile: Literal["lean", "karpenter"], name: str, parameter: Parameter) -> str:
    """Why one of the values cannot be used, found before the search starts."""
    if name in (*_FIELDS, POOLS) and parameter.choices is None:
        return "takes choices only"
    for text in parameter.edges():
        try:
            if name != POOLS:
                resolved_policy(name, policy_file(profile, {name: text}))
        except (SettingError, durations.DurationError, msgspec.ValidationError) as error:
            return str(error)
    return ""
