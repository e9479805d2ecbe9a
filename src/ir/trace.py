"""BoundSymbol and Trace: a program as frozen data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fulgurite.ir import graph, printer, verify
from fulgurite.ir.proxy import Proxy, TensorProxy, is_proxy
from fulgurite.ir.symbol import Symbol
from fulgurite.ir.tree import leaves, map_leaves

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True)
class Source:
    """Where a call stands in the user's program."""

    file: str
    line: int


@dataclass(frozen=True)
class BoundSymbol:
    """A Symbol applied to arguments.

    Its tags are what the recorder saw besides the symbol's own: `gradient` (an autograd node made this dispatcher
    call), `autograd` (a backward pass ran inside this call), `backward` (it comes after the program's end), `no_grad`
    (where a graph was being built, autograd was told not to see this call), `data` (what it returned was looked at, and
    depends on data).
    """

    symbol: Symbol
    args: tuple[Any, ...]  # proxies, constants, and lists, tuples, dicts or slices of them; kwargs too
    kwargs: Mapping[str, Any]
    output: Any  # nested proxies; other leaves (None, numbers) are not bound to a name
    subsymbols: tuple[BoundSymbol, ...] = ()  # the dispatcher calls made for it; none for one of these itself
    module: str = ""  # path of the module whose forward made the call, `blocks.3.attn`
    source: Source | None = None  # the user's line
    forward: str | None = None  # in a backward, the first output of the forward op that it differentiates
    tags: frozenset[str] = frozenset()

    @cached_property
    def inputs(self) -> tuple[Proxy, ...]:
        """The proxies that it reads, without repetition."""
        found = {p.name: p for p in leaves((self.args, dict(self.kwargs))) if is_proxy(p)}
        return tuple(found.values())

    @cached_property
    def outputs(self) -> tuple[Proxy, ...]:
        """The proxies that it defines (an in-place op's result is its argument, so it defines none)."""
        known = {p.name for p in self.inputs}
        found = {p.name: p for p in leaves(self.output) if is_proxy(p) and p.name not in known}
        return tuple(found.values())

    @cached_property
    def all_tags(self) -> frozenset[str]:
        """Its symbol's tags, its own, and those of its subsymbols (a composite of views is no view unless alone)."""
        tags = self.symbol.tags | self.tags
        for sub in self.subsymbols:
            tags |= sub.all_tags - {"view", "effect"}
        if self.subsymbols and all("view" in sub.all_tags for sub in self.subsymbols):
            tags |= {"view"}
        return tags

    @cached_property
    def written(self) -> frozenset[int]:
        """Numbers of the storages that it writes."""
        if self.subsymbols:
            return frozenset().union(*(sub.written for sub in self.subsymbols))
        if "mutates" not in self.all_tags:
            return frozenset()
        schema = self.symbol.schema
        if schema is None:
            return frozenset(p.storage for p in self.inputs)
        values = [
            self.args[i] if i < len(self.args) else self.kwargs.get(argument.name)
            for i, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        return frozenset(p.storage for p in leaves(values) if isinstance(p, TensorProxy))

    @property
    def is_pure(self) -> bool:
        """Whether it depends on its arguments alone and does nothing but return."""
        return not self.all_tags & {"mutates", "random", "custom", "effect", "autograd"}

    def renamed(self, names: Mapping[str, Proxy]) -> BoundSymbol:
        """The same call with proxies replaced by name, subsymbols included."""

        def swap(leaf: Any) -> Any:
            return names.get(leaf.name, leaf) if is_proxy(leaf) else leaf

        return replace(
            self,
            args=map_leaves(swap, self.args),
            kwargs=map_leaves(swap, dict(self.kwargs)),
            output=map_leaves(swap, self.output),
            subsymbols=tuple(sub.renamed(names) for sub in self.subsymbols),
        )

    def flat(self) -> Iterator[BoundSymbol]:
        """The dispatcher calls that it stands for, with its provenance."""
        if not self.subsymbols:
            yield self
        for sub in self.subsymbols:
            yield from replace(sub, module=self.module, source=self.source, forward=self.forward).flat()


@dataclass(frozen=True)
class Provenance:
    """Which pass made a trace, from which trace, in how many seconds."""

    made_by: str = "recorded"
    seconds: float = 0.0
    parent: Trace | None = None


@dataclass(frozen=True)
class Trace:
    """A straight-line program over proxies."""

    name: str  # of the function that it prints as
    inputs: tuple[Proxy, ...]
    bound_symbols: tuple[BoundSymbol, ...]  # in program order
    output: Any  # nested proxies and constants
    constants: Mapping[str, Any] = field(default_factory=dict)  # objects without a literal form, by printed name
    provenance: Provenance = Provenance()  # how it came to be

    def __str__(self) -> str:
        return printer.print_trace(self)

    def text(self, *, header: bool = True, subsymbols: bool = True) -> str:
        """The program as Python; without the header it is the same at every run."""
        return printer.print_trace(self, header=header, subsymbols=subsymbols)

    def python_callable(self) -> Callable[..., Any]:
        """The printed program, executed: a function of the trace's inputs, in order.

        >>> import torch, fulgurite as fg
        >>> trace = fg.make_trace(lambda x: x + 1)(torch.ones(2))
        >>> trace.python_callable()(torch.ones(2))
        tensor([2., 2.])
        """
        return printer.execute(self)

    def graph(self) -> networkx.DiGraph:
        """The data flow as a directed graph; see `fulgurite.ir.graph`."""
        return graph.graph_of(self)

    def verify(self) -> Trace:
        """The trace itself, after checking it.

        Raises:
            InvalidTrace: a name is read before it is defined, defined twice, or deleted and then read.
        """
        verify.check(self)
        return self

    def after(self, made_by: str, bound_symbols: Sequence[BoundSymbol], **changes: Any) -> Trace:
        """The trace that a pass makes of this one: other calls, and this one as its parent."""
        provenance = Provenance(made_by, parent=self)
        return replace(self, bound_symbols=tuple(bound_symbols), provenance=provenance, **changes)

    @property
    def history(self) -> tuple[Trace, ...]:
        """The traces that it was made from, oldest first, and itself."""
        before = self.provenance.parent
        return (*(before.history if before else ()), self)

    def flat(self) -> tuple[BoundSymbol, ...]:
        """Its calls at the dispatcher's level."""
        return tuple(call for bsym in self.bound_symbols for call in bsym.flat())

    @property
    def output_proxies(self) -> tuple[Proxy, ...]:
        """The proxies that it returns, in order."""
        return tuple(p for p in leaves(self.output) if is_proxy(p))

    @cached_property
    def written(self) -> frozenset[int]:
        """Numbers of the storages that any of its calls writes."""
        return frozenset().union(*(bsym.written for bsym in self.bound_symbols))
