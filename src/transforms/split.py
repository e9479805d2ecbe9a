"""split: cut a joint trace into an augmented forward and a backward.

The augmented forward returns `(outputs, saved)`; the backward takes `(*saved, *cotangents)` and returns the
gradients. Saved is what the backward reads of the forward, which is what autograd would save.
"""

from __future__ import annotations

from fulgurite.ir import BoundSymbol, Proxy, Trace


def split(joint: Trace, cotangents: int) -> tuple[Trace, Trace]:
    """The augmented forward and the backward of a joint trace at the dispatcher's level.

    Args:
        joint: a trace that returns `(outputs, gradients)`, its backward calls tagged `backward`.
        cotangents: how many of its last inputs are cotangents.
    """
    count = len(joint.inputs) - cotangents
    primals, seeds = joint.inputs[:count], joint.inputs[count:]
    outputs, gradients = joint.output
    backward = tuple(b for b in joint.bound_symbols if "backward" in b.tags)
    forward = tuple(b for b in joint.bound_symbols if "backward" not in b.tags)
    saved = _read_from_outside(backward, gradients, seeds)
    made = joint.after("split", forward, name="augmented_forward", inputs=primals, output=(outputs, saved))
    pulled = joint.after("split", backward, name="backward", inputs=(*saved, *seeds), output=gradients)
    return made, pulled


def _read_from_outside(
    calls: tuple[BoundSymbol, ...], gradients: tuple[Proxy | None, ...], seeds: tuple[Proxy, ...]
) -> tuple[Proxy, ...]:
    known = {p.name for p in seeds}
    outside: dict[str, Proxy] = {}
    for bsym in calls:
        outside.update((p.name, p) for p in bsym.inputs if p.name not in known)
        known.update(p.name for p in bsym.outputs)
    outside.update((p.name, p) for p in gradients if p is not None and p.name not in known)
    return tuple(outside.values())
