"""Values of options that need no conversion: text, and one of a few words.

typer converts values by pydantic, whose import takes longer than anything else that a short command does before its work. Nearly
all our options are text. Numbers, paths and wrong values still go through typer, so that its messages stay.
"""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin


def take_values_as_given(parameters: list[Any]) -> list[Any]:
    """These parameters of a command, which take text as it is from now on. Those that typer converts otherwise are left alone."""
    for parameter in parameters:
        if getattr(parameter, "_runtime_param", "absent") is None:
            parameter._runtime_param = _TextValue()
    return parameters


class _TextValue:
    """In the place of typer's conversion: the value itself where it is what the annotation asks for, else typer's conversion."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of the option."""
        annotation = param.type_descriptor.annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if param.type_descriptor.parameter_info.parser is None and _is_as_asked(value, annotation):
            return list(value) if get_origin(annotation) is list else value
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _is_as_asked(value: Any, annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Literal:
        return value in get_args(annotation)
    if annotation == list[str]:
        return not isinstance(value, str) and all(isinstance(each, str) for each in value)
    return annotation is str and isinstance(value, str)
