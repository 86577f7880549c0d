"""The entry point. A command is a function with typer's annotations; its module is imported when it is called.

To add one: write the function, and its entry in ``COMMANDS``.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
from collections import UserDict
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup

from karpenter.cli.option_values import take_values_as_given


class CommandEntry(NamedTuple):
    """Where a command is, as ``module:function``, and its line in the list of commands."""

    target: str
    summary: str


#: Commands by name, in the order help lists them. The summaries stand here so that ``karpenter --help`` imports no command.
COMMANDS = {
    "demo": CommandEntry("karpenter.cli.demo_command:demo", "Run a simulated cluster and watch it scale."),
    "run": CommandEntry("karpenter.cli.run_command:run", "Run the controller."),
    "plan": CommandEntry("karpenter.cli.plan_command:plan", "Show the nodes for pending pods and their cost."),
    "simulate": CommandEntry("karpenter.cli.simulate_command:simulate", "Simulate days of a cluster under a policy."),
    "tune": CommandEntry("karpenter.cli.tune_command:tune", "Search settings by simulation: cost against restarts."),
    "lint": CommandEntry("karpenter.cli.lint_command:lint", "Check manifests for what is legal and not meant."),
    "top": CommandEntry("karpenter.cli.top_command:top", "Watch the nodes of a cluster and what they cost."),
    "console": CommandEntry("karpenter.cli.console_command:console", "Watch a cluster in the browser."),
    "explain": CommandEntry("karpenter.cli.explain_command:explain", "Explain a pending pod or a node that stays."),
    "savings": CommandEntry("karpenter.cli.savings_command:savings", "Show what was spent and saved."),
    "budgets": CommandEntry("karpenter.cli.budgets_command:budgets", "Show disruption budgets over time."),
    "schedule": CommandEntry("karpenter.cli.schedule_command:schedule", "Show when NodePools sleep, and the saving."),
    "wake": CommandEntry("karpenter.cli.sleep_command:wake", "Keep NodePools awake for a while."),
    "sleep": CommandEntry("karpenter.cli.sleep_command:sleep", "Send NodePools to sleep for a while."),
    "freeze": CommandEntry("karpenter.cli.freeze_command:freeze", "Suspend voluntary disruption."),
    "thaw": CommandEntry("karpenter.cli.freeze_command:thaw", "Lift a freeze."),
    "replay": CommandEntry("karpenter.cli.replay_command:replay", "Solve a recorded problem again."),
    "convert": CommandEntry("karpenter.cli.convert_command:convert", "Convert manifests of older releases to v1."),
    "adopt": CommandEntry("karpenter.cli.adopt_command:adopt", "Check a take-over from a running Karpenter."),
    "profiles": CommandEntry("karpenter.cli.profiles_command:profiles", "Compare the defaults of both profiles."),
    "doctor": CommandEntry("karpenter.cli.doctor_command:doctor", "Check an installation on AWS."),
    "iam-policy": CommandEntry("karpenter.cli.iam_policy_command:iam_policy", "Print the controller's IAM policy."),
    "schema": CommandEntry("karpenter.cli.schema_command:schema", "Print the JSON schema of a file format."),
    "crds": CommandEntry("karpenter.cli.main:crds", "Print the custom resource definitions."),
    "completion": CommandEntry("karpenter.cli.main:completion", "Print a script for shell completion."),
    "version": CommandEntry("karpenter.cli.main:version", "Print the version."),
}


#: The completion script sets it for the process that it asks.
_COMPLETION_VARIABLE = "_KARPENTER_COMPLETE"

#: How help shows the value of an option that takes one of the two, and means true when it stands alone (OPS-301).
BOOLEAN_METAVAR = "true|false"

#: Help may use so many columns of a wide terminal.
_HELP_SETTINGS: dict[str, Any] = {"max_content_width": 130, "help_option_names": ["-h", "--help"]}


class _Command(TyperCommand):
    """A command whose options with a ``BOOLEAN`` value may stand alone, and whose errors are one line on standard error."""

    def invoke(self, ctx: Any) -> Any:
        from karpenter.cli.terminal import INTERRUPTED, CommandError, exit_on_closed_pipe, exit_with_error

        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as the entry point left it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if not gc.isenabled():  # as the entry point left it
            gc.freeze()
            gc.enable()
        try:
            with exit_on_closed_pipe():
                return super().invoke(ctx)
        except CommandError as error:
            exit_with_error(str(error), error.exit_code)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    def get_params(self, ctx: Any) -> list[Any]:
        return take_values_as_given(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True  # refused below, with what to do instead
        rest = self._parsed(ctx, args)
        if rest and not ctx.resilient_parsing:
            takes_files = any("-f" in param.opts for param in self.params)
            advice = f"; give files with -f: {ctx.command_path} -f {rest[0]}" if takes_files else ""
            ctx.fail(f"Got unexpected extra argument(s) ({' '.join(rest)}){advice}")
        return rest

    def _parsed(self, ctx: Any, args: list[str]) -> list[str]:
        bare = {name for param in self.params if param.metavar == BOOLEAN_METAVAR for name in param.opts}
        said = [
            f"{word}=true" if word in bare and after.startswith("-") else word for word, after in pairwise([*args, "-"])
        ]
        try:
            return super().parse_args(ctx, [*said])  # the parser empties its list
        except typer.BadParameter as error:
            # What pydantic, by which typer checks values, puts before every sentence.
            error.message = error.message.removeprefix("Value error, ")
            missing = self._missing_options(ctx, said)
            if len(missing) > 1:
                ctx.fail(f"Missing options: {', '.join(missing)}.")
            raise

    def _missing_options(self, ctx: Any, args: list[str]) -> list[str]:
        """All options that are needed and neither given nor in the environment: the parser names the first one only."""
        lenient = self.make_context(ctx.info_name, args, parent=ctx.parent, resilient_parsing=True)
        needed = (param for param in self.params if param.required and lenient.params.get(param.name) is None)
        return [param.opts[0] + (f" ({param.envvar})" if param.envvar else "") for param in needed]


class _LazyCommands(UserDict[str, Any]):
    """Commands by name, each built when it is looked up."""

    def __getitem__(self, name: str) -> object:
        module, _, function = self.data[name].target.partition(":")
        # Plain help: markup would take everything in square brackets for its own.
        single = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=_HELP_SETTINGS)
        single.command(name, cls=_Command)(getattr(importlib.import_module(module), function))
        return typer.main.get_command(single)


class _CommandGroup(TyperGroup):
    """The group whose commands are ``COMMANDS``."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast(Any, _LazyCommands(COMMANDS))

    def get_params(self, ctx: Any) -> list[Any]:
        return take_values_as_given(super().get_params(ctx))

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Write the list of commands from their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


app = typer.Typer(
    cls=_CommandGroup,
    add_completion=False,
    context_settings=_HELP_SETTINGS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def version() -> None:
    """Print the version."""
    from importlib import metadata

    typer.echo(f"karpenter {metadata.version('karpenter')}")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def karpenter(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Kubernetes node autoscaler: launches nodes for unschedulable pods and removes nodes that are not worth their price."""


def crds() -> None:
    """Print the custom resource definitions as YAML, ready for `kubectl apply -f -`."""
    from karpenter.api import crds as definitions
    from karpenter.cli.terminal import write_text

    write_text(definitions.to_yaml())


class CompletionShell(StrEnum):
    """Shells with a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[CompletionShell, typer.Argument(help="The shell that reads the script.", metavar="bash|zsh|fish")],
) -> None:
    """Print a script that completes commands and options, such as `source <(karpenter completion bash)`."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # typer documents no other way

    typer.echo(get_completion_script(prog_name="karpenter", complete_var=_COMPLETION_VARIABLE, shell=shell.value))


def main() -> None:
    """Run the command line. Exits with 0, with 2 for wrong input, with 1 for a failure of the environment."""
    if _COMPLETION_VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]  # typer documents no other way

        completion_init()
    # The collector walks through everything several times while Python ends; there is nothing it could give back to anyone.
    atexit.register(gc.freeze)
    app(prog_name="karpenter")


if __name__ == "__main__":
    main()
