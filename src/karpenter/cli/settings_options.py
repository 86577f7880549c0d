"""Options generated from the declared settings, so that each setting is described in one place (OPS-300)."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer

from karpenter.cli.terminal import WRONG_INPUT, exit_with_error
from karpenter.model.setting_kinds import Profile, Setting, SettingError
from karpenter.settings import SETTINGS, Settings, resolve_settings

#: Flags by the name of their setting, None where not given. They are the settings the command uses.
Flags = dict[str, str | None]
#: Settings of commands that talk to a cluster.
CONNECTION_SETTINGS = ("kubeconfig", "context")
#: Settings of commands that compute plans.
PLANNING_SETTINGS = (
    "profile",
    "instance_types_file_path",
    "preference_policy",
    "min_values_policy",
    "scheduler_config",
    "packing",
    "node_fee",
    "cpu_surplus",
    "exposure",
    "max_pods_per_node",
    "interruption_cost",
    "minimum_saving_ratio",
    "minimum_node_age",
    "wait_for_rollouts",
    "stabilization_window",
    "feature_gates",
    *CONNECTION_SETTINGS,
)


def with_setting_options(
    names: Iterable[str] = tuple(SETTINGS),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that adds an option for each of these settings to a command, which receives them in its parameter ``flags``."""
    added = tuple(names)
    return lambda command: _with_options(command, added)


def _with_options(command: Callable[..., None], names: Sequence[str]) -> Callable[..., None]:
    added = [_option_parameter(SETTINGS[name]) for name in names]
    return with_parameters(command, "flags", added, [*own_parameters(command, "flags"), *added])


def own_parameters(command: Callable[..., None], receiver: str) -> list[inspect.Parameter]:
    """The parameters of a command but for the one that receives options which are added to it."""
    own = inspect.signature(command, eval_str=True).parameters
    return [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, parameter in own.items() if name != receiver
    ]


def with_parameters(
    command: Callable[..., None],
    receiver: str,
    added: Sequence[inspect.Parameter],
    shown: Sequence[inspect.Parameter],
    build: Callable[..., object] = dict,
) -> Callable[..., None]:
    """The command with the options ``shown``, in this order. It receives what ``build`` makes of those that are ``added``."""

    def with_options(**given: Any) -> None:
        received = build(**{parameter.name: given.pop(parameter.name) for parameter in added})
        command(**{receiver: received}, **given)

    with_options.__doc__ = command.__doc__
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    with_options.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return with_options


def _option_parameter(setting: Setting) -> inspect.Parameter:
    spelling = setting.spelling
    option = typer.Option(
        spelling.flag, *spelling.aliases, help=option_help(setting), metavar=setting.declaration.kind.metavar
    )
    annotation = Annotated[str | None, option]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def option_help(setting: Setting) -> str:
    """What ``--help`` says of a setting: meaning, unit, variable and default."""
    unit = f"unit {setting.declaration.unit}, " if setting.declaration.unit else ""
    karpenter = setting.default_in(Profile.KARPENTER)
    other = f", profile karpenter {karpenter}" if karpenter != setting.default else ""
    return f"{setting.help} [{unit}env {setting.spelling.variable}, default {setting.default or 'empty'}{other}]"


def resolve_or_exit(command: str, flags: Flags, files: Sequence[str] | None = None) -> Settings:
    """The settings of these flags and of the environment. Ends the command where one is wrong.

    ``files``: what is read in place of a cluster. Flags that name a cluster are wrong beside them; variables of the environment
    are not, which stand there for other commands.
    """
    if files:
        _refuse_cluster_flags(command, flags)
    try:
        return resolve_settings(flags, os.environ, tuple(flags))
    except SettingError as error:
        exit_with_error(f"karpenter {command}: {error}", WRONG_INPUT)


def _refuse_cluster_flags(command: str, flags: Flags) -> None:
    for name in CONNECTION_SETTINGS:
        if flags.get(name) is not None:
            flag = SETTINGS[name].spelling.flag
            text = f"karpenter {command}: -f reads files in place of a cluster, so {flag} has no use beside it"
            exit_with_error(text, WRONG_INPUT)
