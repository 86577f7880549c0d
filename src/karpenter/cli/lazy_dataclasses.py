"""Methods of dataclasses, compiled when they are first called: a command uses few methods of the hundreds of classes it loads.

``dataclasses`` writes the source of each method of a class and compiles it while the class is made. That takes half a millisecond
for a class, a quarter of the time of a short command. It is the same source here, compiled later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

_Function = Callable[..., Any]
#: The function of the standard library up to Python 3.12 that compiles one method. Later versions compile all methods of a class
#: in one step, which takes less time, and keep theirs.
_COMPILER = "_create_fn"


def compile_methods_on_first_call() -> None:
    """From now on, dataclasses are made with methods that compile themselves. A second call changes nothing."""
    namespace = vars(dataclasses)
    compiler = namespace.get(_COMPILER)
    if compiler is not None and compiler.__module__ == dataclasses.__name__:
        namespace[_COMPILER] = _lazy(compiler)


def _lazy(compiler: _Function) -> _Function:
    def create(name: str, *source: Any, **context: Any) -> _Function:
        compiled: list[_Function] = []

        def method(*arguments: Any, **named: Any) -> Any:
            if not compiled:
                compiled.append(_compiled(compiler(name, *source, **context), method))
                _replace(method, compiled[0], type(arguments[0]) if arguments else object)
            return compiled[0](*arguments, **named)

        method.__name__ = name
        return method

    return create


def _compiled(function: _Function, placeholder: _Function) -> _Function:
    function.__qualname__ = placeholder.__qualname__
    return function


def _replace(placeholder: _Function, function: _Function, kind: type) -> None:
    """Put the function where the class has its placeholder. A placeholder that is wrapped, as ``__repr__`` is, stays."""
    for owner in kind.__mro__:
        if vars(owner).get(function.__name__) is placeholder:
            setattr(owner, function.__name__, function)
