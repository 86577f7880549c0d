"""The options of ``karpenter run``: what help says of them, and how they are read."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from karpenter.cli import run_command
from karpenter.cli.main import app
from karpenter.cli.settings_options import option_help
from karpenter.settings import SETTINGS, Settings


class Command:
    """``karpenter run`` as far as its settings."""

    def __init__(self) -> None:
        self.settings: list[Settings] = []

    def serve(self, settings: Settings, _cloud: object) -> None:
        self.settings.append(settings)

    def __call__(self, *arguments: str, columns: int = 200, **variables: str) -> Result:
        cleared = {name: None for name in os.environ if name.startswith("KARPENTER")}
        cleared |= {setting.spelling.variable: None for setting in SETTINGS.values()}
        return CliRunner().invoke(app, ["run", *arguments], env={**cleared, "COLUMNS": str(columns), **variables})


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    made = Command()
    monkeypatch.setattr(run_command, "_run_controller", made.serve)
    monkeypatch.setattr(run_command, "_simulated_cloud", lambda settings: None)
    monkeypatch.setattr(run_command, "_notifications", lambda settings: None)
    return made


@pytest.mark.parametrize("columns", [60, 200])
def test_help_names_variable_and_default_of_every_setting(command: Command, columns: int) -> None:
    """OPS-300"""
    said = " ".join(command("--help", columns=columns).output.split())
    for setting in SETTINGS.values():
        assert all(flag in said for flag in (setting.spelling.flag, *setting.spelling.aliases))
        assert f"env {setting.spelling.variable}, default {setting.default or 'empty'}" in unbroken(said)
    assert "--check" in said


@pytest.mark.parametrize("name", ["plan", "explain", "budgets", "freeze", "thaw", "doctor"])
def test_a_command_says_of_its_settings_what_run_says(name: str) -> None:
    """OPS-300: the options of all commands are generated from the declarations; those that read a cluster name it alike."""
    said = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output
    options = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", said, re.MULTILINE))
    own = [setting for setting in SETTINGS.values() if setting.spelling.flag in options]
    assert {"--kubeconfig", "--context"} <= options
    assert all(option_help(setting) in unbroken(" ".join(said.split())) for setting in own)


def unbroken(text: str) -> str:
    """Help without the breaks it makes after hyphens."""
    return text.replace("- ", "-")


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_has_a_flag_that_sets_it(command: Command, name: str) -> None:
    """OPS-300: and every other one stays as it is."""
    setting = SETTINGS[name]
    value = OTHER_VALUES.get(name, "false" if setting.default == "true" else "true")
    for flag in (setting.spelling.flag, *setting.spelling.aliases):
        result = command(f"{flag}={value}")
        assert result.exit_code == 0, result.output
        changed = {key: text for key, text in command.settings.pop().as_text().items() if text != DEFAULTS[key]}
        assert set(changed) == ({name} if value != DEFAULTS[name] else set())


DEFAULTS = Settings().as_text()
#: A value other than the default, where "the opposite" is none.
OTHER_VALUES = {
    "log_format": "console",
    "bootstrap_mode": "kubeadm",
    "bootstrap_token_ttl": "30m0s",
    "bootstrap_token_delivery": "window",
    "bootstrap_token_groups": "system:bootstrappers:nodes",
    "expiration_window": "30m0s",
    "terminating_pods_window": "20s",
    "max_pods_per_node": "58",
    "packing": "classic",
    "minimum_saving_ratio": "0.25",
    "minimum_node_age": "1m0s",
    "stabilization_window": "30s",
    "profile": "lean",
    "history_interval": "2m0s",
    "history_max_age": "24h0m0s",
    "history_max_bytes": "1000000",
    "console_port": "8090",
    "kubeconfig": "/etc/kubeconfig",
    "context": "other",
    "ami_refresh_interval": "2m0s",
    "subnet_refresh_interval": "3m0s",
    "security_group_refresh_interval": "4m0s",
    "aws_feature_gates": "NodeClassCEL=true",
    "cluster_dns_ip": "10.96.0.10",
    "cluster_endpoint": "https://10.0.0.1:6443",
    "cluster_ca_bundle": "UEVN",
    "reserved_enis": "4",
    "service_cidr": "10.96.0.0/12",
    "vm_memory_overhead_percent": "0.05",
    "exposure": "0.25",
    "interruption_cost": "2.0",
    "node_fee": "0.25",
    "cpu_surplus": "false",
    "provider": "simulated",
    "log_level": "debug",
    "log_output_paths": "stderr",
    "log_error_output_paths": "stdout",
    "metrics_port": "1",
    "health_probe_port": "2",
    "kube_client_qps": "3",
    "kube_client_burst": "4",
    "leader_election_name": "a",
    "leader_election_namespace": "b",
    "memory_limit": "5",
    "cpu_requests": "6",
    "batch_max_duration": "7s",
    "batch_idle_duration": "8s",
    "preference_policy": "Ignore",
    "min_values_policy": "BestEffort",
    "scheduler_config": "podTopologySpread: {defaultConstraints: "
    "[{maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway}]}",
    "feature_gates": "SpotToSpotConsolidation=true",
    "nomination_qps": "9",
    "claims_per_minute": "10",
    "instance_types_file_path": "types.json",
    "simulated_faults_file": "faults.yaml",
    "record_problems": "/var/problems",
    "karpenter_service": "webhook",
    "webhook_port": "9443",
    "webhook_url": "https://scaler.example:9443",
}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), True),
        (("--nominate-pods",), True),
        (("--nominate-pods=true",), True),
        (("--nominate-pods", "true"), True),
        (("--nominate-pods=false",), False),
        (("--nominate-pods", "false"), False),
        (("--nominate-pods", "--log-level", "error"), True),
        (("--log-level", "error", "--nominate-pods"), True),
        (("--nominate-pods=false", "--nominate-pods"), True),
    ],
    ids=lambda value: " ".join(value) or "none" if isinstance(value, tuple) else None,
)
def test_a_flag_that_stands_alone_means_true(command: Command, arguments: tuple[str, ...], expected: bool) -> None:
    """OPS-301"""
    result = command(*arguments)
    assert result.exit_code == 0, result.output
    assert [settings.nominate_pods for settings in command.settings] == [expected]


def test_a_flag_that_stands_alone_beats_the_variable(command: Command) -> None:
    """OPS-300, OPS-301"""
    command("--nominate-pods", NOMINATE_PODS="false")
    command(NOMINATE_PODS="false")
    assert [settings.nominate_pods for settings in command.settings] == [True, False]


@pytest.mark.parametrize("value", ["maybe", "1", ""])
def test_only_true_and_false_are_flags(command: Command, value: str) -> None:
    """OPS-301"""
    result = command(f"--nominate-pods={value}")
    assert result.exit_code == 2
    assert f"--nominate-pods={value!r} is not true or false" in result.output
    assert command.settings == []


@pytest.mark.parametrize(
    ("arguments", "variable", "source"),
    [
        (("--provider", "moon"), "simulated", "--provider='moon'"),
        ((), "moon", "KARPENTER_PROVIDER='moon'"),
    ],
)
def test_an_unknown_provider_is_refused_by_the_name_of_its_source(
    command: Command, arguments: tuple[str, ...], variable: str, source: str
) -> None:
    """OPS-300, OPS-304"""
    result = command(*arguments, KARPENTER_PROVIDER=variable)
    assert result.exit_code == 2
    assert f"{source} is not a provider; choose simulated" in result.output
    assert command.settings == []


def test_a_provider_can_be_named_in_either_form(command: Command) -> None:
    """OPS-300"""
    command("--provider", "simulated", KARPENTER_PROVIDER="moon")
    command(KARPENTER_PROVIDER="simulated")
    command(KARPENTER_PROVIDER="")
    assert len(command.settings) == 3


# -- looking without running ----------------------------------------------------------------------------------------------


def test_check_prints_every_setting_with_its_source_and_ends(command: Command) -> None:
    """OPS-305"""
    result = command("--check", "--batch-max-duration=90s", "--feature-gates=Xyzzy=true", KUBE_CLIENT_QPS="7")
    assert result.exit_code == 0
    assert command.settings == []
    lines = [line.split() for line in result.output.splitlines()]
    assert ["--batch-max-duration", "1m30s", "[--batch-max-duration]"] in lines
    assert ["--kube-client-qps", "7", "[KUBE_CLIENT_QPS]"] in lines
    assert ["--log-level", "info"] in lines
    assert ["--leader-election-namespace", "(empty)"] in lines
    assert {line[0] for line in lines} == {setting.spelling.flag for setting in SETTINGS.values()} | {"note:"}
    assert "note: feature gate Xyzzy: unknown and ignored" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--log-level=loud",), "--log-level='loud' is not debug, info or error"),
        (("--log-output-paths=/nowhere/log",), "/nowhere/log cannot be written: there is no folder /nowhere"),
        (("--log-error-output-paths=/",), "/ is a folder"),
    ],
)
def test_check_refuses_what_a_run_would_refuse(command: Command, arguments: tuple[str, ...], says: str) -> None:
    result = command("--check", *arguments)
    assert result.exit_code == 2
    assert result.output == f"karpenter run: {says}\n"


@pytest.mark.parametrize("option", ["--instance-types", "--simulated-faults-file"])
def test_check_reads_the_files_a_run_would_read(option: str, tmp_path: Path) -> None:
    result = Command()("--check", f"{option}={tmp_path / 'absent'}")
    assert result.exit_code == 2
    assert "absent" in result.output
    assert len(result.output.splitlines()) == 1
