"""Walking the arguments and outputs of a call: nested lists, tuples, dicts and slices with values at the leaves."""

from collections.abc import Callable, Iterator
from typing import Any


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of `tree` from left to right.

    >>> list(leaves((1, [2, {"a": 3}], slice(4, None))))
    [1, 2, 3, 4, None, None]
    """
    if isinstance(tree, (list, tuple, dict)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(item)
    elif isinstance(tree, slice):
        yield from (tree.start, tree.stop, tree.step)
    else:
        yield tree


def map_leaves(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Rebuild `tree` with `fn` applied to each leaf; named tuples and other sequences keep their type.

    >>> map_leaves(lambda n: n * 2, (1, [2, {"a": 3}]))
    (2, [4, {'a': 6}])
    """
    if isinstance(tree, (list, tuple)):
        items = [map_leaves(fn, item) for item in tree]
        if isinstance(tree, list):
            return items
        return tree._make(items) if hasattr(tree, "_make") else tuple(items)
    if isinstance(tree, dict):
        return {key: map_leaves(fn, item) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(fn(tree.start), fn(tree.stop), fn(tree.step))
    return fn(tree)
