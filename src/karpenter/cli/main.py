"""The entry point. A command is a function with typer's annotations; its module is imported when it is called.

To add one: write the function, name it in ``COMMANDS``.
"""

from __future__ import annotations

import importlib
from collections import UserDict
from itertools import pairwise
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

#: Command name to ``module:function``, in the order help lists them.
COMMANDS = {
    "demo": "karpenter.cli.demo_command:demo",
    "run": "karpenter.cli.run_command:run",
    "plan": "karpenter.cli.plan_command:plan",
    "profiles": "karpenter.cli.profiles_command:profiles",
    "replay": "karpenter.cli.replay_command:replay",
    "explain": "karpenter.cli.explain_command:explain",
    "budgets": "karpenter.cli.budgets_command:budgets",
    "freeze": "karpenter.cli.freeze_command:freeze",
    "thaw": "karpenter.cli.freeze_command:thaw",
    "doctor": "karpenter.cli.doctor_command:doctor",
    "iam-policy": "karpenter.cli.iam_policy_command:iam_policy",
    "crds": "karpenter.cli.main:crds",
}


#: How help shows the value of an option that takes one of the two, and means true when it stands alone (OPS-301).
BOOLEAN_METAVAR = "true|false"

#: Help may use this many columns of a wide terminal.
_HELP_WIDTH = {"max_content_width": 130}


class _Command(TyperCommand):
    """A command whose options with a ``BOOLEAN`` value may stand alone, and whose errors are one line on standard error."""

    def invoke(self, ctx: Any) -> Any:
        from karpenter.cli.terminal import CommandError, exit_on_closed_pipe, exit_with_error

        try:
            with exit_on_closed_pipe():
                return super().invoke(ctx)
        except CommandError as error:
            exit_with_error(str(error), error.exit_code)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        bare = {name for param in self.params if param.metavar == BOOLEAN_METAVAR for name in param.opts}
        said = [
            f"{word}=true" if word in bare and after.startswith("-") else word for word, after in pairwise([*args, "-"])
        ]
        return super().parse_args(ctx, said)


class _LazyCommands(UserDict[str, Any]):
    """Commands by name, each built when it is looked up."""

    def __getitem__(self, name: str) -> object:
        module, _, function = self.data[name].partition(":")
        # Plain help: markup would take everything in square brackets for its own.
        single = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=_HELP_WIDTH)
        single.command(name, cls=_Command)(getattr(importlib.import_module(module), function))
        return typer.main.get_command(single)


class _CommandGroup(TyperGroup):
    """The group whose commands are ``COMMANDS``."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast(Any, _LazyCommands(COMMANDS))


app = typer.Typer(
    cls=_CommandGroup,
    add_completion=False,
    context_settings=_HELP_WIDTH,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
    """Kubernetes node autoscaler: launches nodes for unschedulable pods and removes nodes that are not worth their price."""


def crds() -> None:
    """Print the custom resource definitions as YAML, ready for `kubectl apply -f -`."""
    from karpenter.api import crds as definitions
    from karpenter.cli.terminal import write_text

    write_text(definitions.to_yaml())


def main() -> None:
    """Run the command line. Exits with 0, with 2 for wrong input, with 1 for a failure of the environment."""
    app(prog_name="karpenter")


if __name__ == "__main__":
    main()
