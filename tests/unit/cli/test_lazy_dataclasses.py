"""Dataclasses whose methods compile themselves: each behaves as one that the standard library made at once."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, NamedTuple

import pytest

from karpenter.cli import lazy_dataclasses

_COMPILES_LAZILY = hasattr(dataclasses, "_create_fn")


class Classes(NamedTuple):
    """The same classes, made in one way."""

    plain: Any
    frozen: Any
    derived: Any


def _classes() -> Classes:
    @dataclass(order=True)
    class Plain:
        first: int
        second: list[int] = field(default_factory=list)
        third: str = field(default="x", kw_only=True)

        def __post_init__(self) -> None:
            self.sum = self.first + len(self.second)

    @dataclass(frozen=True, slots=True)
    class Frozen:
        first: int
        other: Any = field(default=None, compare=False)

    @dataclass(frozen=True, slots=True)
    class Derived(Frozen):
        last: float = 1.5

    return Classes(Plain, Frozen, Derived)


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> Classes:
    """Classes made after the change, which the test takes back."""
    _set_compiler(monkeypatch, _standard_compiler())
    lazy_dataclasses.compile_methods_on_first_call()
    return _classes()


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> Classes:
    with monkeypatch.context() as undone:
        _set_compiler(undone, _standard_compiler())
        return _classes()


def _set_compiler(monkeypatch: pytest.MonkeyPatch, compiler: object) -> None:
    if _COMPILES_LAZILY:
        monkeypatch.setattr(dataclasses, "_create_fn", compiler)


def _standard_compiler() -> object:
    """That of the standard library, whoever has changed it in this process."""
    specification = importlib.util.find_spec("dataclasses")
    assert specification is not None
    assert specification.loader is not None
    fresh = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(fresh)
    return vars(fresh).get("_create_fn")


def test_values_compare_print_and_hash_as_those_of_usual_classes(lazy: Classes, usual: Classes) -> None:
    def observed(made: Classes) -> list[Any]:
        plain, frozen, derived = made.plain(1, [2]), made.frozen(1, other=[]), made.derived(1, None, last=2.0)
        return [
            *(repr(each).replace("<locals>.", "") for each in (plain, frozen, derived, made.plain(7))),
            *(plain.sum, plain == made.plain(1, [2]), plain == made.plain(1), plain < made.plain(2), plain == 3),
            *(frozen == made.frozen(1), hash(frozen) == hash(made.frozen(1)), frozen == derived, hash(derived)),
            *(dataclasses.asdict(plain), dataclasses.astuple(derived), repr(copy.copy(frozen))),
            *(repr(dataclasses.replace(derived, first=5)), [each.name for each in dataclasses.fields(derived)]),
        ]

    assert observed(lazy) == observed(usual)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param((), {}, id="too-few"),
        pytest.param((1, 2, 3, 4), {}, id="too-many"),
        pytest.param((1,), {"unknown": 1}, id="unknown-name"),
    ],
)
def test_wrong_arguments_are_refused_in_the_usual_words(
    lazy: Classes, usual: Classes, arguments: tuple[int, ...], named: dict[str, int]
) -> None:
    for kind in Classes._fields:
        messages = []
        for made in (usual, lazy):
            with pytest.raises(TypeError) as refused:
                getattr(made, kind)(*arguments, **named)
            messages.append(str(refused.value))
        assert messages[0] == messages[1]


def test_a_frozen_value_stays_as_it_is(lazy: Classes) -> None:
    value = lazy.derived(1)
    for change in (lambda: setattr(value, "first", 2), lambda: delattr(value, "last")):
        with pytest.raises(FrozenInstanceError):
            change()
    assert value == lazy.derived(1)


def test_the_first_call_puts_the_compiled_method_into_the_class_that_has_it(lazy: Classes) -> None:
    lazy.derived(1)
    assert lazy.derived(1) == lazy.derived(1)
    assert lazy.derived.__init__.__code__.co_varnames[:4] == ("self", "first", "other", "last")
    assert lazy.derived.__eq__.__qualname__.endswith("Derived.__eq__")


@pytest.mark.skipif(not _COMPILES_LAZILY, reason="this Python compiles the methods of a class in one step")
def test_nothing_is_compiled_for_a_class_that_is_only_defined(lazy: Classes) -> None:
    assert lazy.frozen.__init__.__code__.co_filename == lazy_dataclasses.__file__


def test_a_second_change_does_nothing(lazy: Classes) -> None:
    before = vars(dataclasses).get("_create_fn")
    lazy_dataclasses.compile_methods_on_first_call()
    assert vars(dataclasses).get("_create_fn") is before


def test_values_of_the_products_classes_survive_a_pickle_in_a_process_that_compiles_lazily() -> None:
    script = (
        "from karpenter.cli.lazy_dataclasses import compile_methods_on_first_call as lazily; lazily();"
        "import pickle; from karpenter.model.requirements import Requirement;"
        "value = Requirement('k', False, frozenset('v'));"
        "assert pickle.loads(pickle.dumps(value)) == value; print(repr(value))"
    )
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    from karpenter.model.requirements import Requirement

    value = Requirement("k", False, frozenset("v"))
    assert printed.strip() == repr(pickle.loads(pickle.dumps(value)))
