"""``karpenter profiles``, and what the profiles mean."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app
from karpenter.model.setting_kinds import Profile, SettingError
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, Objective
from karpenter.scheduling.scheduling_options import PackingMode
from karpenter.settings import SETTINGS, Settings, resolve_settings

DIFFERENT = {
    "--feature-gates": ("NodeRepair=true", "NodeRepair=false"),
    "--packing": ("cheapest", "fewest-pods"),
    "--node-fee": ("0.005", "0"),
    "--cpu-surplus": ("true", "false"),
    "--exposure": ("0.5", "off"),
    "--max-pods-per-node": ("110", "0"),
    "--interruption-cost": ("1", "0"),
    "--terminating-pods-window": ("30s", "0s"),
    "--include-untried-pods": ("true", "false"),
    "--nominate-pods": ("true", "false"),
    "--minimum-saving-ratio": ("0.3", "0"),
    "--minimum-node-age": ("5m", "0s"),
    "--wait-for-rollouts": ("true", "false"),
    "--stabilization-window": ("15s", "0s"),
    "--wait-for-slow-replacements": ("true", "false"),
    "--expiration-window": ("1h", "0s"),
}


def test_profiles_prints_both_side_by_side() -> None:
    printed = json.loads(CliRunner().invoke(app, ["profiles", "-o", "json"]).stdout)
    assert {flag: (row["lean"], row["karpenter"]) for flag, row in printed.items()} == DIFFERENT
    lines = CliRunner().invoke(app, ["profiles"]).stdout.splitlines()
    assert lines[0].split() == ["setting", "lean", "karpenter", "meaning"]
    assert [line.split()[:3] for line in lines if line.startswith("--")] == [
        [flag, *row] for flag, row in DIFFERENT.items()
    ]


def test_lean_is_the_default() -> None:
    assert resolve_settings({}, {}) == resolve_settings({"profile": "lean"}, {}) == Settings()


def test_the_profile_karpenter_has_the_defaults_of_karpenter() -> None:
    settings = resolve_settings({}, {"KARPENTER_PROFILE": "karpenter"})
    options = settings.scheduling_options()
    assert options.objective == Objective(0.0, 0.0, NO_EXPOSURE_LIMITS, counts_cpu_surplus=False)
    assert options.packing_mode is PackingMode.FEWEST_PODS
    assert not settings.nominate_pods
    assert {name for name, text in settings.as_text().items() if text != Settings().as_text()[name]} == {
        "profile",
        *(name for name, setting in SETTINGS.items() if setting.spelling.flag in DIFFERENT),
    }


def test_a_setting_of_its_own_wins_over_the_profile() -> None:
    settings = resolve_settings({"profile": "karpenter", "node_fee": "0.01"}, {"EXPOSURE": "0.3"})
    assert settings.node_fee == 0.01
    assert settings.as_text()["exposure"] == "0.3"
    assert settings.minimum_saving_ratio == 0


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(SettingError, match="--profile='fast' is not lean or karpenter"):
        resolve_settings({"profile": "fast"}, {})
    assert [*Profile] == ["lean", "karpenter"]
