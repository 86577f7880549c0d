"""The options of ``karpenter run``: what help says of them, and how they are read."""

from __future__ import annotations

import os

import pytest
from typer.testing import CliRunner, Result

from karpenter.cli import run
from karpenter.cli.main import app
from karpenter.control.settings import SETTINGS, Settings, environment_name, flag_name


class Command:
    """``karpenter run`` as far as its settings."""

    def __init__(self) -> None:
        self.settings: list[Settings] = []

    async def serve(self, settings: Settings) -> None:
        self.settings.append(settings)

    def __call__(self, *arguments: str, columns: int = 200, **variables: str) -> Result:
        environment = {name: None for name in os.environ if name.startswith("KARPENTER")}
        environment |= {environment_name(name): None for name in SETTINGS}
        return CliRunner().invoke(app, ["run", *arguments], env={**environment, "COLUMNS": str(columns), **variables})


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    made = Command()
    monkeypatch.setattr(run, "_serve", made.serve)
    return made


@pytest.mark.parametrize("columns", [60, 200])
def test_help_names_variable_and_default_of_every_setting(command: Command, columns: int) -> None:
    """OPS-300"""
    said = " ".join(command("--help", columns=columns).output.split())
    for name, setting in SETTINGS.items():
        assert flag_name(name) in said
        assert f"[env {environment_name(name)}, default {setting.default or 'empty'}]" in said
    assert "[env KARPENTER_PROVIDER, default simulated]" in said


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
        ((), "", "KARPENTER_PROVIDER=''"),
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
    assert len(command.settings) == 2
