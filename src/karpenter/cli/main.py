"""The entry point. A command is a function with typer's annotations; its module is imported when somebody calls it.

To add one: write the function, name it in ``COMMANDS``.
"""

from __future__ import annotations

import importlib
from collections import UserDict
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

#: Command name to ``module:function``, in the order help lists them.
COMMANDS = {
    "demo": "karpenter.cli.demo:demo",
    "run": "karpenter.cli.run:run",
    "plan": "karpenter.cli.plan:plan",
    "crds": "karpenter.cli.main:crds",
}


class _Late(UserDict[str, Any]):
    """Commands by name, each built when it is looked up."""

    def __getitem__(self, name: str) -> object:
        module, _, function = self.data[name].partition(":")
        single = typer.Typer(add_completion=False)
        single.command(name)(getattr(importlib.import_module(module), function))
        return typer.main.get_command(single)


class _Group(TyperGroup):
    """The group whose commands are ``COMMANDS``."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast(Any, _Late(COMMANDS))


app = typer.Typer(cls=_Group, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"karpenter {version('karpenter')}")
        raise typer.Exit


@app.callback()
def karpenter(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Buys the machines that waiting pods need, and gives them back when they are no longer worth their price."""


def crds() -> None:
    """Print the custom resource definitions as YAML, ready for `kubectl apply -f -`."""
    from karpenter.api import crds as definitions
    from karpenter.cli.output import emit

    emit(definitions.to_yaml())


def main() -> None:
    """Run the command line. Exits with 0, with 2 for wrong input, with 1 where the world did not do its part."""
    app(prog_name="karpenter")


if __name__ == "__main__":
    main()
