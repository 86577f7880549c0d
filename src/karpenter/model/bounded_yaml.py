"""YAML of users with a bound on what its aliases stand for: a file of a kilobyte can be written to mean gigabytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec
import yaml

from karpenter.model.texts import NESTED_TOO_DEEPLY, decoding_text

T = TypeVar("T")

#: Characters that the aliases of a document may add to it.
MAX_ALIASED_CHARACTERS = 2_000_000
_FIRST_PRINTABLE = 0x20
#: What making values raises beside YAML's own errors: for dates that do not exist, keys that are lists, values that do not fit
#: their tag, numbers that are no numbers, very deep nesting.
VALUE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


class YamlNodeError(yaml.YAMLError):
    """What is wrong with a document that is well-formed, with its line."""


class InvalidYaml(Exception):
    """A document is no YAML, or not what is expected there; the message is for after the name of its file."""


def load_yaml(content: bytes | str) -> object:
    """The value of one document. Raises ``yaml.YAMLError``, whatever is wrong with it."""
    return load_yaml_with_node(content)[0]


def load_yaml_with_node(content: bytes | str) -> tuple[object, yaml.Node | None]:
    """The value of one document, and its node, which knows lines. Raises ``yaml.YAMLError``, whatever is wrong with it."""
    loader = _loader(content)
    try:
        root = loader.get_single_node()
        return _value(loader, root), root
    except VALUE_ERRORS as error:
        raise _as_yaml_error(error) from None
    finally:
        loader.dispose()


def yaml_as(content: bytes | str, wanted: type[T]) -> T:
    """The structure in one document. Raises ``InvalidYaml``."""
    try:
        return msgspec.convert(load_yaml(content), wanted)
    except yaml.YAMLError as error:
        raise InvalidYaml(f"cannot be read as YAML: {yaml_error_line(error)}") from None
    except msgspec.ValidationError as error:
        raise InvalidYaml(decoding_text(error)) from None


def load_first_yaml(content: bytes | str) -> object:
    """The value of the first document of several; None without any. Raises ``yaml.YAMLError``, whatever is wrong with it."""
    loader = _loader(content)
    try:
        return _value(loader, loader.get_node()) if loader.check_node() else None
    except VALUE_ERRORS as error:
        raise _as_yaml_error(error) from None
    finally:
        loader.dispose()


def yaml_problem(error: yaml.YAMLError) -> str:
    """What is wrong with a text, without the words of the parser's library and without its line."""
    if isinstance(error, yaml.reader.ReaderError):
        is_control = isinstance(error.character, int) and error.character < _FIRST_PRINTABLE
        return "it has control characters" if is_control else "it is not a text in UTF-8"
    problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else None
    return problem or " ".join(str(error).split())


def yaml_error_line(error: yaml.YAMLError) -> str:
    """What is wrong with a text, after its line where that is known."""
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return f"line {mark.line + 1}: {yaml_problem(error)}" if mark is not None else yaml_problem(error)


def check_aliases(root: yaml.Node) -> None:
    """Raises ``YamlNodeError`` where aliases add too much or contain themselves."""
    sizes: dict[int, int] = {}
    expanded = _expanded_size(root, sizes, set())
    written = sum(map(_own_size, distinct_nodes(root)))
    if expanded - written > MAX_ALIASED_CHARACTERS:
        raise YamlNodeError(
            f"its aliases make {expanded:,} characters of {written:,}; write out what they stand for, or less of it"
        )


def distinct_nodes(root: yaml.Node) -> list[yaml.Node]:
    """Every node below a root once, however many aliases stand for it."""
    seen = {id(root)}
    nodes = [root]
    for node in nodes:
        for child in _children(node):
            if id(child) not in seen:
                seen.add(id(child))
                nodes.append(child)
    return nodes


def place_of(node: yaml.Node) -> str:
    """Where a node starts, for messages."""
    return f"line {node.start_mark.line + 1}, column {node.start_mark.column + 1}"


def _loader(content: bytes | str) -> yaml.SafeLoader:
    loader: yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(content)
    return loader


def _value(loader: yaml.SafeLoader, root: yaml.Node | None) -> object:
    if root is None:
        return None
    check_aliases(root)
    return loader.construct_document(root)


def _as_yaml_error(error: Exception) -> YamlNodeError:
    if isinstance(error, RecursionError):
        return YamlNodeError(NESTED_TOO_DEEPLY)
    if isinstance(error, LookupError | AttributeError):
        return YamlNodeError("a value does not fit its tag")
    return YamlNodeError(" ".join(str(error).split()))


def _expanded_size(node: yaml.Node, sizes: dict[int, int], open_nodes: set[int]) -> int:
    """Characters of the scalars in a node with every alias written out."""
    if id(node) in open_nodes:
        raise YamlNodeError(f"{place_of(node)}: an alias stands inside what it stands for")
    if id(node) not in sizes:
        open_nodes.add(id(node))
        inner = sum(_expanded_size(child, sizes, open_nodes) for child in _children(node))
        open_nodes.discard(id(node))
        sizes[id(node)] = _own_size(node) + inner
    return sizes[id(node)]


def _own_size(node: yaml.Node) -> int:
    return 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value
