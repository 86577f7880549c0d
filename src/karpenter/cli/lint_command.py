"""``karpenter lint -f``: what is legal in manifests, dashboards and alerts and probably not meant. Reads files only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from karpenter.cli.output_formats import LintOutput, LintOutputOption, Printable, write_output
from karpenter.cli.planning_options import RecursiveOption
from karpenter.cli.settings_options import Flags, resolve_or_exit, with_setting_options
from karpenter.cli.terminal import FAILED, WrongInput, write_text
from karpenter.lint.rule import Severity

if TYPE_CHECKING:
    from karpenter.cli.render_lint import LintReport
    from karpenter.lint.rule import Rule
    from karpenter.settings import Settings

_SETTINGS = ("instance_types_file_path",)


class _LintOptions(NamedTuple):
    """What is asked for beside the files."""

    region: str
    settings: Settings
    ignored: frozenset[str]


@with_setting_options(_SETTINGS)
def lint(
    *,
    flags: Flags,
    filename: Annotated[
        list[str] | None,
        typer.Option(
            "-f",
            "--filename",
            metavar="FILE",
            help="YAML or JSON with objects, dashboards or alert rules, a directory of such files, or - for standard input; "
            "may be repeated.",
        ),
    ] = None,
    recursive: RecursiveOption = False,
    output: LintOutputOption = "table",
    fail_on: Annotated[
        Severity, typer.Option("--fail-on", help="Exit with 1 if there is a finding of this severity or a worse one.")
    ] = Severity.ERROR,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="IDS", help="Rules to leave out, such as KL201,KL304; may be repeated."),
    ] = None,
    region: Annotated[
        str,
        typer.Option(
            metavar="REGION",
            help="EC2 region of NodePools that name none. Default: the region that other objects name, else AWS_REGION, "
            "else us-east-1.",
        ),
    ] = "",
    explain: Annotated[str, typer.Option(metavar="ID", help="Print what a rule finds, why, and an example.")] = "",
) -> None:
    """Check manifests, dashboards and alerts for what is legal and probably not meant. Reads files only.

    The comment or annotation karpenter.sh/lint-ignore: ID,... suppresses findings.
    """
    from karpenter.lint.rules import RULES

    if explain:
        write_text(_rule_page(_rule_named(explain, RULES)))
        return
    if not filename:
        raise WrongInput("lint needs -f FILE; use -f - for standard input")
    ignored = frozenset(
        _rule_named(part, RULES).id for text in ignore or () for part in text.split(",") if part.strip()
    )
    settings = resolve_or_exit("lint", flags)
    report = _lint_files(filename, recursive, _LintOptions(region, settings, ignored))
    _write_report(report, output)
    if any(finding.rule.severity.rank <= fail_on.rank for finding in report.result.findings):
        raise typer.Exit(FAILED)


def _rule_named(text: str, rules: tuple[Rule, ...]) -> Rule:
    """The rule of an ID or name. Raises ``WrongInput``."""
    wanted = text.strip()
    for rule in rules:
        if wanted.upper() == rule.id or wanted.lower() == rule.name:
            return rule
    raise WrongInput(f"there is no rule {wanted}; the rules are in the reference, {rules[0].id} to {rules[-1].id}")


def _rule_page(rule: Rule) -> str:
    from karpenter.lint.rule_page import rule_markdown

    return f"# {rule.id} {rule.name}\n\n{rule_markdown(rule)}"


def _lint_files(paths: list[str], recursive: bool, options: _LintOptions) -> LintReport:
    from dataclasses import replace

    from karpenter.cli.lint_offers import pool_offers
    from karpenter.cli.lint_reader import read_lint_files
    from karpenter.cli.planning import gc_disabled
    from karpenter.cli.render_lint import LintReport
    from karpenter.lint.linter import lint as run_rules
    from karpenter.lint.rules import RULES
    from karpenter.version import __version__

    with gc_disabled():
        files = read_lint_files(paths, recursive=recursive)
        offers = pool_offers(files.cluster_objects, options.region, options.settings)
        rules = tuple(rule for rule in RULES if rule.id not in options.ignored)
        return LintReport(run_rules(replace(files.lint_input, offers=offers), rules), rules, __version__)


def _write_report(report: LintReport, output: LintOutput) -> None:
    from karpenter.cli import render_lint
    from karpenter.cli.render_common import to_json

    if output == "sarif":
        write_text(to_json(render_lint.sarif(report)))
        return
    printable = Printable(
        document=lambda: render_lint.document(report),
        page=lambda out: render_lint.write(report, out),
        names=lambda: render_lint.object_names(report),
        markdown=lambda: render_lint.markdown(report),
    )
    write_output(output, printable)
