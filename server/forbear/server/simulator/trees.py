"""JSON trees: setting and removing what a pointer of a contract names."""

from __future__ import annotations

import re
from collections.abc import Callable, MutableSequence
from typing import cast

from forbear.rules.contract import Pointer, Select
from forbear.rules.ports import Json
from forbear.rules.values import text_of

Step = str | Select
_INDEX = re.compile("0|[1-9][0-9]{0,3}")


def put(tree: Json, pointer: Pointer, value: Json) -> Json:
    """The tree with a value at a pointer; objects and arrays on the way are made."""
    return _put(tree, pointer.steps, value)


def _put(node: Json, steps: tuple[Step, ...], value: Json) -> Json:
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(step, Select):
        array = _array(node)
        index = next((i for i, one in enumerate(array) if _is_meant(one, step)), len(array))
        if index == len(array):
            array.append({step.key: step.value})
        array[index] = _put(array[index], rest, value)
        return array
    if isinstance(node, list) or (not isinstance(node, dict) and _INDEX.fullmatch(step)):
        array = _array(node)
        index = int(step) if _INDEX.fullmatch(step) else len(array)
        array.extend({} for _ in range(index + 1 - len(array)))
        array[index] = _put(array[index], rest, value)
        return array
    held = cast(dict[str, Json], node) if isinstance(node, dict) else {}
    held[step] = _put(held.get(step), rest, value)
    return held


def _array(node: Json) -> MutableSequence[Json]:
    return cast(MutableSequence[Json], node) if isinstance(node, list) else []


def _is_meant(element: Json, step: Select) -> bool:
    return isinstance(element, dict) and (
        text_of(cast(dict[str, Json], element).get(step.key)) == step.value
    )


def remove(tree: Json, pointer: Pointer) -> Json:
    """The tree without what a pointer names."""
    if not pointer.steps:
        return None
    *way, last = pointer.steps
    node = tree
    for step in way:
        node = _enter(node, step)
    if isinstance(node, dict) and not isinstance(last, Select):
        cast(dict[str, Json], node).pop(last, None)
    elif isinstance(node, list):
        array = cast(MutableSequence[Json], node)
        gone = _enter(array, last)
        array[:] = [one for one in array if one is not gone]
    return tree


def _enter(node: Json, step: Step) -> Json:
    if isinstance(node, list):
        array = cast(MutableSequence[Json], node)
        if isinstance(step, Select):
            return next((one for one in array if _is_meant(one, step)), None)
        return array[int(step)] if _INDEX.fullmatch(step) and int(step) < len(array) else None
    if isinstance(node, dict) and not isinstance(step, Select):
        return cast(dict[str, Json], node).get(step)
    return None


def changed(tree: Json, change: Callable[[str], str]) -> Json:
    """A copy of a tree in which every text was changed."""
    if isinstance(tree, dict):
        return {k: changed(v, change) for k, v in cast(dict[str, Json], tree).items()}
    if isinstance(tree, list):
        return [changed(one, change) for one in cast(MutableSequence[Json], tree)]
    return change(tree) if isinstance(tree, str) else tree
