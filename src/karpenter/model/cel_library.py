"""The CEL library, without its interactive command line.

The package imports that command line with itself, and with it prompt_toolkit: a third of what `karpenter plan` imports before it
reads a file. An empty module in its place keeps the import to the evaluator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import cel

_COMMAND_LINE = "cel.cli"


def compile_expression(expression: str) -> cel.Program:
    """The expression's program. Raises ValueError where it is not CEL."""
    _import()
    import cel

    return cel.compile(expression)


def context(variables: Mapping[str, object], functions: Mapping[str, Callable[..., object]]) -> cel.Context:
    """Variables and functions of an evaluation. Raises TypeError or ValueError where the library cannot hold a variable."""
    _import()
    import cel

    return cel.Context(variables=dict(variables), functions=dict(functions))


@cache
def _import() -> None:
    if "cel" in sys.modules:
        return
    sys.modules[_COMMAND_LINE] = ModuleType(_COMMAND_LINE)
    try:
        import cel  # noqa: F401
    finally:
        del sys.modules[_COMMAND_LINE]
