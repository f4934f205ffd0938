# SPDX-License-Identifier: Apache-2.0
"""What the planner and the ranks have to know of an operator: which of its dimensions belong together.

A *term* has a string of letters for each dimension of a tensor, as in planner/graph/sharding_rule.h: letters name factors,
a dimension of several has them major first. Cutting a factor cuts every dimension that begins with it. An operator may be
run on the parts of its operands, and gives a part of its result (or, where a factor is summed, a part of the sum).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..errors import InputError

__all__ = ["Local", "Operand", "Operator", "Program", "Recorder", "Term", "Value", "elements"]

Term = tuple[str, ...]

MAX_DIM_FACTORS = 3


def elements(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


@dataclass(frozen=True)
class Value:
    """A tensor while a model is read."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str  # "input", "parameter", "result" or "constant"
    # A parameter is what the model has, seen through a permutation and a cast:
    order: tuple[int, ...] | None = None
    cast: torch.dtype | None = None
    data: torch.Tensor | None = None  # of a constant

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Operand:
    """How an operator reads a tensor. The term is that of the tensor as it is kept; `order` and `cast` follow."""

    name: str
    kind: str
    term: Term
    order: tuple[int, ...] | None = None
    cast: torch.dtype | None = None
    data: torch.Tensor | None = None


@dataclass(frozen=True)
class Local:
    """Where an operator runs: sizes of the factors there, and random numbers that copies of a part have in common."""

    sizes: dict[str, int]
    generator: Callable[[torch.device], torch.Generator] | None = None

    def shape(self, term: Term) -> list[int]:
        return [elements([self.sizes[letter] for letter in letters]) for letters in term]


Run = Callable[[list[torch.Tensor], Local], torch.Tensor]


@dataclass(frozen=True)
class Operator:
    name: str
    kind: str  # of docs/graph.md
    module: str  # path of the module that it is part of
    operands: tuple[Operand, ...]
    result: Term
    dtype: torch.dtype
    sizes: dict[str, int]
    whole: str
    flops: float
    linear: bool
    view: bool  # moves no bytes
    run: Run
    merged: Run | None = None  # does at once what made the first operand, which nothing else reads, and this

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(elements([self.sizes[letter] for letter in letters]) for letters in self.result)

    @property
    def planned(self) -> list[Operand]:
        """The operands that the planner sees: constants are cut as the others demand."""
        return [operand for operand in self.operands if operand.kind != "constant"]


def _write_term(term: Term) -> str:
    return "".join(letters if len(letters) == 1 else f"({letters})" for letters in term)


_DTYPES = {
    torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64",
    torch.int8: "int8", torch.uint8: "int8", torch.bool: "int8", torch.int16: "int16", torch.int32: "int32",
    torch.int64: "int64", torch.complex128: "complex128",
}  # fmt: skip


def _dtype_name(name: str, dtype: torch.dtype) -> str:
    if dtype not in _DTYPES:
        raise InputError(f"'{name}' has elements of type {dtype}, which the planner does not know")
    return _DTYPES[dtype]


@dataclass(frozen=True)
class Derived:
    """A number that follows from inputs which every rank has whole, as that of a loss's labels: no sum over the ranks."""

    value: Value
    reads: frozenset[str]
    of: Callable[[Mapping[str, torch.Tensor]], torch.Tensor]


@dataclass
class Program:
    """The forward pass of a model and its loss, for one micro-batch."""

    name: str
    arguments: list[str] = field(default_factory=list)  # inputs in the order of the call, the target last
    inputs: dict[str, Value] = field(default_factory=dict)  # those that are used
    derived: dict[str, Derived] = field(default_factory=dict)  # inputs to the planner, too
    parameters: dict[str, Value] = field(default_factory=dict)  # in the model's order
    operators: list[Operator] = field(default_factory=list)
    loss: str = ""
    aliases: dict[str, str] = field(default_factory=dict)  # other names of parameters
    checkpoints: int = 0  # calls of torch.utils.checkpoint that were traced through

    @property
    def flops(self) -> float:
        return sum(operator.flops for operator in self.operators)

    def prune(self) -> None:
        """Forgets what the loss does not need."""
        needed, kept = {self.loss}, []
        for operator in reversed(self.operators):
            if operator.name in needed:
                kept.append(operator)
                needed.update(operand.name for operand in operator.operands)
        self.operators = kept[::-1]
        self.derived = {name: number for name, number in self.derived.items() if name in needed}
        needed.update(*(number.reads for number in self.derived.values()))
        self.inputs = {name: value for name, value in self.inputs.items() if name in needed}
        self.parameters = {name: value for name, value in self.parameters.items() if name in needed}

    def late(self) -> set[str]:
        """Operators whose results, numbers, are of interest as what they come to in the loss, and nowhere else: what ranks
        have of them may be added up when all micro-batches are done. Each is a sum, or linear in such."""
        made = {operator.name: operator for operator in self.operators}
        readers: dict[str, int] = {self.loss: 1}
        for operator in self.operators:
            for operand in operator.operands:
                readers[operand.name] = readers.get(operand.name, 0) + 1

        def sums(name: str) -> set[str]:
            operator = made.get(name)
            if operator is None or operator.result or readers[name] > 1:
                return set()
            if operator.kind != "elementwise":
                return {name}
            parts = [sums(operand.name) for operand in operator.operands]
            zeros = [torch.zeros((), dtype=operator.dtype) for _ in parts]
            # What adds a constant is linear to the planner, and would add it on each rank.
            if not operator.linear or not all(parts) or operator.run(zeros, Local(dict(operator.sizes))).item() != 0:
                return set()
            return {name}.union(*parts)

        return sums(self.loss)

    def to_graph(self) -> dict[str, Any]:
        """The operator graph of docs/graph.md."""
        inputs = {**self.inputs, **{name: number.value for name, number in self.derived.items()}}
        tensors = [
            {"name": name, "kind": kind, "shape": list(value.shape), "dtype": _dtype_name(name, value.dtype)}
            for kind, values in (("input", inputs), ("parameter", self.parameters))
            for name, value in values.items()
        ]
        ops = []
        for operator in self.operators:
            planned = operator.planned
            seen = "".join(letter for letters in (*(o.term for o in planned), operator.result) for letter in letters)
            op: dict[str, Any] = {
                "name": operator.name,
                "kind": operator.kind,
                "operands": [operand.name for operand in planned],
                "rule": ",".join(_write_term(o.term) for o in planned) + "->" + _write_term(operator.result),
                "sizes": {letter: size for letter, size in operator.sizes.items() if letter in seen},
                "dtype": _dtype_name(operator.name, operator.dtype),
                "flops": operator.flops,
            }
            whole = "".join(letter for letter in operator.whole if letter in seen)
            if whole:
                op["whole"] = whole
            if operator.module:
                op["label"] = operator.module.replace(".", "/")
            if operator.linear:
                op["linear"] = True
            if operator.view:
                op["touched"] = [-1] * (len(planned) + 1)
            ops.append(op)
        return {
            "format": "autopar-graph", "version": 1, "name": self.name, "tensors": tensors, "ops": ops,
            "loss": {"tensor": self.loss},
        }  # fmt: skip


def _casting(run: Run, how: tuple[str, torch.dtype, bool], made: torch.dtype) -> Run:
    """Under torch.autocast as the model has it; what is one operator there may be several here."""

    def cast(parts: list[torch.Tensor], local: Local) -> torch.Tensor:
        with torch.autocast(how[0], how[1], how[2]):
            return run(parts, local).to(made)

    return cast


class Recorder:
    """Collects a program's operators; what reads the model's operators one by one calls emit()."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.module, self.base = "", ""  # of the operator that is read
        self.target: Any = None
        self.shape: tuple[int, ...] = ()  # of its result, where that is one tensor
        self.autocast: tuple[str, torch.dtype, bool] | None = None  # device, element type, whether it is on
        self._taken: set[str] = set()
        self._followed: dict[str, Derived] = {}  # what follows from whole-number inputs alone

    def reserve(self, name: str) -> str:
        taken, number = name, 1
        while taken in self._taken:
            number += 1
            taken = f"{name}_{number}"
        self._taken.add(taken)
        return taken

    def where(self) -> str:
        return f"module '{self.module}'" if self.module else "the model"

    def refuse(self, reason: str) -> InputError:
        return InputError(f"{self.where()}: {reason}")

    def emit(
        self,
        kind: str,
        run: Run,
        uses: Sequence[tuple[Value, Term]],
        result: Term,
        dtype: torch.dtype,
        *,
        suffix: str = "",
        whole: str = "",
        sizes: dict[str, int] | None = None,
        flops: float = 0.0,
        linear: bool = False,
        view: bool = False,
        merged: Run | None = None,
    ) -> Value:
        """One more operator. What depends on constants only is computed at once."""
        known = dict(sizes or {})
        if self.autocast is not None:
            run, merged = _casting(run, self.autocast, dtype), None
        for value, term in uses:
            for extent, letters in zip(value.shape, term):
                if len(letters) == 1:
                    known[letters] = extent
        local = Local(known)
        if all(value.kind == "constant" for value, _ in uses):
            with torch.no_grad():
                data = run([value.data for value, _ in uses if value.data is not None], local)
            return Value(self.base, tuple(data.shape), data.dtype, "constant", data=data)
        follows = self._follows(run, [value for value, _ in uses], Value(self.base + suffix, (), dtype, "input"), local)
        if follows is not None and not result:
            name = self.reserve(self.base + suffix)
            follows = replace(follows, value=replace(follows.value, name=name))
            self.program.derived[name] = follows
            return follows.value
        operands = tuple(self._operand(value, term) for value, term in uses)
        read = set("".join(letters for operand in operands if operand.kind != "constant" for letters in operand.term))
        made = set("".join(result))
        if any(known[letter] > 1 and letter not in whole for letter in read - made):
            # A sum may be scattered over a dimension of the result: this must not look like a cut of the factor.
            whole += "".join(sorted(made - read))
        whole += "".join(sorted(set(known) - read - made))
        if kind in ("elementwise", "reshape") and all(operand.kind == "parameter" for operand in operands):
            kind = "custom"  # of weights alone: not one of the forms that layering looks through
        operator = Operator(
            self.reserve(self.base + suffix), kind, self.module, operands, result, dtype, known,
            "".join(dict.fromkeys(whole)), flops, linear, view, run, merged,
        )  # fmt: skip
        self.program.operators.append(operator)
        if follows is not None:
            self._followed[operator.name] = follows
        return Value(operator.name, operator.shape, dtype, "result")

    def _follows(self, run: Run, values: Sequence[Value], made: Value, local: Local) -> Derived | None:
        """Whole numbers are labels, positions and masks; what is computed of others is left to the planner."""
        reads: list[Derived] = []
        for value in values:
            if value.kind == "input" and not value.dtype.is_floating_point and not value.dtype.is_complex:
                name = value.name
                reads.append(Derived(value, frozenset([name]), lambda inputs, name=name: inputs[name]))  # type: ignore[misc]
            elif value.name in self._followed:
                reads.append(self._followed[value.name])
            else:
                return None
        return Derived(
            made, frozenset().union(*(read.reads for read in reads)),
            lambda inputs: run([read.of(inputs) for read in reads], local),
        )  # fmt: skip

    @staticmethod
    def _operand(value: Value, term: Term) -> Operand:
        if value.order is not None:
            kept = [""] * len(term)
            for place, letters in zip(value.order, term):
                kept[place] = letters
            term = tuple(kept)
        return Operand(value.name, value.kind, term, value.order, value.cast, value.data)


def permuted(value: Value, order: Sequence[int]) -> Value:
    """A parameter or a constant, seen in another order of its dimensions."""
    shape = tuple(value.shape[dim] for dim in order)
    if value.data is not None:
        return replace(value, shape=shape, data=value.data.permute(*order))
    kept = value.order or tuple(range(value.rank))
    return replace(value, shape=shape, order=tuple(kept[dim] for dim in order))


def converted(value: Value, dtype: torch.dtype) -> Value:
    if value.data is not None:
        return replace(value, dtype=dtype, data=value.data.to(dtype))
    return replace(value, dtype=dtype, cast=dtype)
