"""Options made from the table of settings, so that a setting is described in one place only (OPS-300)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from karpenter.cli.main import BOOLEAN_METAVAR
from karpenter.runtime.setting_kinds import Setting
from karpenter.runtime.settings import SETTINGS

#: Flags by the name of their setting, None where not given.
Flags = dict[str, str | None]


def with_setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every setting, which it is handed as ``flags``, besides the options it has itself."""

    def with_options(**given: Any) -> None:
        flags: Flags = {name: given.pop(name) for name in SETTINGS}
        command(flags=flags, **given)

    own = inspect.signature(command, eval_str=True).parameters
    parameters = [_option_parameter(name, setting) for name, setting in SETTINGS.items()]
    parameters += [parameter for name, parameter in own.items() if name != "flags"]
    with_options.__doc__ = command.__doc__
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_options


def _option_parameter(name: str, setting: Setting) -> inspect.Parameter:
    spelling = setting.spelling
    shown = f"{setting.help} [env {spelling.variable}, default {setting.default or 'empty'}]"
    metavar = BOOLEAN_METAVAR if setting.is_switch else "TEXT"
    option = typer.Option(spelling.flag, *spelling.aliases, help=shown, metavar=metavar)
    annotation = Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
