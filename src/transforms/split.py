"""split: cut a joint trace into an augmented forward and a backward.

The augmented forward returns `(outputs, saved)`; the backward takes `(*saved, *cotangents)` and returns the
gradients. Saved is what the backward reads of the forward, which is what autograd would save.
"""

from fulgurite.ir import Trace


def split(joint: Trace, cotangents: int) -> tuple[Trace, Trace]:
    """The augmented forward and the backward of a joint trace at the dispatcher's level.

    The joint trace returns `(outputs, gradients)`; its last inputs are the cotangents, `cotangents` of them.
    """
    count = len(joint.inputs) - cotangents
    primals, seeds = joint.inputs[:count], joint.inputs[count:]
    outputs, gradients = joint.output
    backward = tuple(b for b in joint.bound_symbols if "backward" in b.tags)
    forward = tuple(b for b in joint.bound_symbols if "backward" not in b.tags)
    made_there = {p.name for p in (*seeds, *(p for b in backward for p in b.outputs))}
    read = (p for p in (*(p for b in backward for p in b.inputs), *gradients) if p is not None)
    saved = tuple({p.name: p for p in read if p.name not in made_there}.values())
    made = joint.after("split", forward, name="augmented_forward", inputs=primals, output=(outputs, saved))
    pulled = joint.after("split", backward, name="backward", inputs=(*saved, *seeds), output=gradients)
    return made, pulled
