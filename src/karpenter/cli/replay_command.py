"""``karpenter replay``: solves a recorded problem of scheduling or disruption again and compares the solutions byte for byte."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from karpenter.cli.output_formats import Output, OutputOption, Printable, node_name, write_output
from karpenter.cli.plan_command import wall_seconds, write_reports
from karpenter.cli.terminal import WRONG_INPUT, exit_with_error, print_error
from karpenter.model.texts import NESTED_TOO_DEEPLY, count_text, shorten, why_unreadable

if TYPE_CHECKING:
    from karpenter.disruption.decide.command import Command
    from karpenter.disruption.decide.disruption_problem import DisruptionSolution
    from karpenter.scheduling.data_codec import Json

#: Exit code where the solution is another one.
_DIFFERENT = 1
_SHOWN_DIFFERENCES = 20
_SHOWN_CHARACTERS = 80
_EXPECTED = "expected a file of plan --record or run --record-problems"
_SAME_SOLUTION = "the solution is the recorded one, byte for byte"


def replay(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of plan --record or run --record-problems.")],
    output: OutputOption = "table",
) -> None:
    """Solve a recorded problem again, of scheduling or of disruption. Exits with 0 and prints the plan or the commands where the
    solution is the recorded one byte for byte; with 1 and prints the differences where it is not; with 2 where the file cannot
    be read.
    """
    from karpenter.disruption.decide.disruption_problem_file import DISRUPTION_FORMAT
    from karpenter.scheduling.problem_file_parts import ProblemFileError, recorded_format

    try:
        content = Path(file).read_bytes()
        if recorded_format(content) == DISRUPTION_FORMAT:
            _replay_disruption(file, content, output)
        else:
            _replay_scheduling(file, content, output)
    except OSError as error:
        exit_with_error(f"{file}: {why_unreadable(error)}; {_EXPECTED}", WRONG_INPUT)
    except ProblemFileError as error:
        exit_with_error(f"{file}: {error}", WRONG_INPUT)
    except RecursionError:
        exit_with_error(f"{file}: not a problem file: {NESTED_TOO_DEEPLY}; {_EXPECTED}", WRONG_INPUT)


def _replay_scheduling(file: str, content: bytes, output: Output) -> None:
    from karpenter.cli.planning import gc_disabled
    from karpenter.cli.render_plan_data import PlanReport, PlanTiming
    from karpenter.scheduling.problem import build_type_indexes
    from karpenter.scheduling.problem_file import read_problem, solution_bytes
    from karpenter.scheduling.search.linear_program import load_solver
    from karpenter.scheduling.solver import solve

    with gc_disabled():
        load_solver()
        started = time.perf_counter()
        recorded = read_problem(content)
        indexes = build_type_indexes(recorded.problem)
        loaded = time.perf_counter()
        solution = solve(recorded.problem, indexes)
        solved = time.perf_counter()
        solved_bytes = solution_bytes(recorded.problem, solution)
        if solved_bytes != recorded.solution_bytes:
            _end_with_differences(file, recorded.recorded_by, recorded.solution_bytes, solved_bytes)
        timing = PlanTiming(solved - loaded, loaded - started, wall_seconds())
        write_reports(PlanReport(solution, indexes, timing), None, None, output)
        print_error(f"{file}: {_SAME_SOLUTION}")


def _replay_disruption(file: str, content: bytes, output: Output) -> None:
    import msgspec

    from karpenter.cli.planning import gc_disabled
    from karpenter.disruption.decide.disruption_decision import decide_disruption
    from karpenter.disruption.decide.disruption_problem_file import disruption_solution_bytes, read_disruption_problem
    from karpenter.scheduling.problem import type_indexes_of
    from karpenter.scheduling.search.linear_program import load_solver

    with gc_disabled():
        load_solver()
        recorded = read_disruption_problem(content)
        solution = decide_disruption(recorded.problem, type_indexes_of(recorded.instance_types))
    solved_bytes = disruption_solution_bytes(recorded.problem, solution)
    if solved_bytes != recorded.solution_bytes:
        _end_with_differences(file, recorded.recorded_by, recorded.solution_bytes, solved_bytes)
    printable = Printable(
        document=lambda: msgspec.json.decode(solved_bytes),
        page=lambda out: _print_commands(out, solution),
        names=lambda: [
            node_name(candidate.state_node.name) for command in solution.commands for candidate in command.candidates
        ],
    )
    write_output(output, printable)
    print_error(f"{file}: {_SAME_SOLUTION}")


def _print_commands(out: TextIO, solution: DisruptionSolution) -> None:
    """The commands, one per line: ID, reason, decision, nodes, replacements, saving."""
    for line in [_described_command(command) for command in solution.commands] or ["no commands"]:
        print(line, file=out)


def _described_command(command: Command) -> str:
    nodes = ", ".join(candidate.state_node.name for candidate in command.candidates)
    replacements = ", ".join(
        f"{claim.name} ({claim.instance_types[0]} or {len(claim.instance_types) - 1} other types)"
        for claim in command.replacements
    )
    saving = "" if command.saving_per_hour is None else f", saves {command.saving_per_hour:.4f} USD/h"
    target = f" -> [{replacements}]" if replacements else ""
    return f"{command.command_id} {command.reason} {command.decision} [{nodes}]{target}{saving}"


def _end_with_differences(file: str, recorded_by: str, recorded_bytes: bytes, solved_bytes: bytes) -> None:
    from importlib.metadata import version

    import msgspec

    from karpenter.cli.terminal import write_text

    before, after = msgspec.json.decode(recorded_bytes), msgspec.json.decode(solved_bytes)
    shown = list(islice(_differences("solution", before, after), _SHOWN_DIFFERENCES + 1))
    more = ["...\n"] if len(shown) > _SHOWN_DIFFERENCES else []
    write_text("".join([*(f"{line}\n" for line in shown[:_SHOWN_DIFFERENCES]), *more]))
    by = f"recorded by Karpenter {recorded_by}, solved by {version('karpenter')}"
    exit_with_error(f"{file}: the solution differs from the recorded one ({by})", _DIFFERENT)


def _differences(path: str, before: Json, after: Json) -> Iterator[str]:
    """Where two JSON values differ, each with the recorded value and the one of now."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            yield from _differences(f"{path}.{key}", before.get(key), after.get(key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _differences(f"{path}[{at}]", old, new)
    elif before != after:
        yield f"{path}: recorded {_shortened(before)}, now {_shortened(after)}"


def _shortened(value: Json) -> str:
    import msgspec

    if isinstance(value, list):
        return count_text(len(value), "item")
    text = msgspec.json.encode(value).decode()
    return shorten(text, _SHOWN_CHARACTERS)
