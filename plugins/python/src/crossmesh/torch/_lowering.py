# SPDX-License-Identifier: Apache-2.0
"""Operators of torch.export's graphs as the planner's: a function for each name of ATen's. Those that only move
elements are in _movement.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as functional

from ..errors import InputError
from ._operators import Local, Recorder, Run, Term, Value, converted, elements

__all__ = ["HANDLERS", "Letters", "handles", "is_pointwise", "lower_pointwise"]

Handler = Callable[[Recorder, SimpleNamespace, torch.dtype], Any]
HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    def note(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return note


class Letters:
    """Letters for factors, each given once."""

    def __init__(self) -> None:
        self._left: Iterator[str] = iter("abcdefghijklmnopqrstuvwxyz")

    def take(self, count: int) -> Term:
        taken = tuple(itertools.islice(self._left, count))
        if len(taken) < count:
            raise InputError("an operator has more than 26 different dimensions")
        return taken


def reduced(value: Value, dims: Any, keep: bool) -> tuple[list[int], Term, Term, dict[str, int]]:
    """The dimensions that a reduction goes over, the terms of operand and result, and the sizes of what stays as 1."""
    letters = Letters()
    term = letters.take(value.rank)
    given = [dims] if isinstance(dims, int) else dims
    over = sorted({dim % value.rank for dim in given} if given else set(range(value.rank)))
    result: list[str] = []
    sizes: dict[str, int] = {}
    for dim, letter in enumerate(term):
        if dim not in over:
            result.append(letter)
        elif keep:
            result += letters.take(1)
            sizes[result[-1]] = 1
    return over, term, tuple(result), sizes


def _broadcast(letters: Letters, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Term], Term]:
    """Terms of operands that are broadcast to one shape, and that of the result."""
    rank = max((len(shape) for shape in shapes), default=0)
    result = [""] * rank
    terms = [[""] * len(shape) for shape in shapes]
    for place in range(-rank, 0):
        extents = [shape[place] if len(shape) >= -place else None for shape in shapes]
        largest = max(extent for extent in extents if extent is not None)
        result[place] = letters.take(1)[0]
        for term, extent in zip(terms, extents):
            if extent is not None:
                term[place] = result[place] if extent == largest else letters.take(1)[0]
    return [tuple(term) for term in terms], tuple(result)


# Element by element -----------------------------------------------------------------------------------

# Without torch's tag for them.
_POINTWISE = {"masked_fill", "where", "gelu", "silu", "relu", "tanh", "sigmoid", "rsub", "square", "pow", "to", "type_as"}
# Their derivative does not need the operands.
_LINEAR = {"add", "sub", "neg", "rsub", "to", "_to_copy", "type_as"}
_LINEAR_IN_FIRST = {"mul", "div"}


def is_pointwise(target: Any) -> bool:
    return torch.Tag.pointwise in target.tags or target._opname in _POINTWISE


def lower_pointwise(
    recorder: Recorder, target: Any, args: Sequence[Any], kwargs: dict[str, Any], dtype: torch.dtype
) -> Value:
    tensors = [value for value in args if isinstance(value, Value)]
    if any(isinstance(value, Value) for value in kwargs.values()) or any(isinstance(arg, list) for arg in args):
        raise recorder.refuse(f"{target} with operands in lists or by keyword has no sharding rule")
    terms, result = _broadcast(Letters(), [value.shape for value in tensors])

    def run(parts: list[torch.Tensor], _: Local) -> torch.Tensor:
        left = iter(parts)
        filled = [next(left) if isinstance(arg, Value) else arg for arg in args]
        made: torch.Tensor = target(*filled, **kwargs)
        return made

    name = target._opname
    linear = name in _LINEAR or name in _LINEAR_IN_FIRST and len(tensors) == 1
    shape = torch.broadcast_shapes(*(value.shape for value in tensors))
    return recorder.emit(
        "elementwise", run, list(zip(tensors, terms)), result, dtype, linear=linear, flops=float(elements(shape))
    )


@handles("to", "_to_copy", "type_as")
def _convert(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    value: Value = a.self
    if value.dtype == dtype:
        return value
    if value.kind in ("parameter", "constant"):
        return converted(value, dtype)
    term = Letters().take(value.rank)
    return recorder.emit("elementwise", lambda parts, _: parts[0].to(dtype), [(value, term)], term, dtype, linear=True)


@handles("contiguous", "clone", "alias", "lift_fresh_copy", "lift_fresh")
def _same(_: Recorder, a: SimpleNamespace, __: torch.dtype) -> Value:
    value: Value = a.self
    return value


def _dropped(part: torch.Tensor, p: float, local: Local) -> torch.Tensor:
    generator = local.generator(part.device) if local.generator is not None else None
    mask = torch.empty_like(part).bernoulli_(1.0 - p, generator=generator)
    return part * mask.div_(1.0 - p) if p < 1 else part * 0


@handles("dropout")
def _dropout(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    value: Value = a.input
    if a.p == 0 or not a.train:
        return value
    term = Letters().take(value.rank)
    return recorder.emit(
        "elementwise", lambda parts, local: _dropped(parts[0], a.p, local), [(value, term)], term, dtype,
        flops=2.0 * elements(value.shape),
    )  # fmt: skip


@handles("native_dropout")
def _native_dropout(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> tuple[Value, None]:
    """Its mask is for a backward pass that is not exported."""
    return _dropout(recorder, a, a.input.dtype), None


# Products of matrices ------------------------------------------------------------------------------------


def _product(recorder: Recorder, left: Value, right: Value, dtype: torch.dtype) -> Value:
    if left.rank < 2 or right.rank < 2:
        raise recorder.refuse(f"a product of tensors of {left.rank} and {right.rank} dimensions has no sharding rule")
    letters = Letters()
    (first, second), batch = _broadcast(letters, [left.shape[:-2], right.shape[:-2]])
    m, n, k = letters.take(3)
    shape = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    flops = 2.0 * elements(shape) * left.shape[-2] * left.shape[-1] * right.shape[-1]
    return recorder.emit(
        "einsum", lambda parts, _: torch.matmul(*parts), [(left, (*first, m, k)), (right, (*second, k, n))],
        (*batch, m, n), dtype, flops=flops,
    )  # fmt: skip


def _add(
    recorder: Recorder, value: Value, other: Value, dtype: torch.dtype, suffix: str, merged: Run | None = None
) -> Value:
    (first, second), result = _broadcast(Letters(), [value.shape, other.shape])
    return recorder.emit(
        "elementwise", lambda parts, _: parts[0] + parts[1], [(value, first), (other, second)], result, dtype,
        suffix=suffix, linear=True, flops=float(elements(value.shape)), merged=merged,
    )  # fmt: skip


@handles("matmul", "mm", "bmm")
def _matmul(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    return _product(recorder, a.self, a.other if hasattr(a, "other") else a.mat2, dtype)


@handles("addmm", "baddbmm")
def _addmm(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    if a.alpha != 1 or a.beta != 1:
        raise recorder.refuse("addmm with factors other than 1 has no sharding rule")
    left, right = (a.mat1, a.mat2) if hasattr(a, "mat1") else (a.batch1, a.batch2)
    return _add(recorder, _product(recorder, left, right, dtype), a.self, dtype, "/bias")


@handles("linear")
def _linear(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    letters = Letters()
    batch = letters.take(a.input.rank - 1)
    k, n = letters.take(2)
    made = recorder.emit(
        "einsum", lambda parts, _: functional.linear(*parts), [(a.input, (*batch, k)), (a.weight, (n, k))],
        (*batch, n), dtype, flops=2.0 * elements(a.input.shape) * a.weight.shape[0],
    )  # fmt: skip
    return made if a.bias is None else _add(recorder, made, a.bias, dtype, "/bias", lambda parts, _: functional.linear(*parts))


@handles("einsum")
def _einsum(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    equation = a.equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow or not equation.replace(",", "").replace("->", "").islower() or any(
        len(set(term)) < len(term) for term in (*terms, right)
    ):  # fmt: skip
        raise recorder.refuse(
            f"einsum '{a.equation}' has no sharding rule: small letters, each once in an operand, and an arrow are handled"
        )
    sizes = {letter: extent for value, term in zip(a.tensors, terms) for letter, extent in zip(term, value.shape)}
    return recorder.emit(
        "einsum", lambda parts, _: torch.einsum(equation, *parts),
        [(value, tuple(term)) for value, term in zip(a.tensors, terms)], tuple(right), dtype,
        flops=2.0 * elements(list(sizes.values())),
    )  # fmt: skip


def _attention_with_dropout(parts: list[torch.Tensor], a: SimpleNamespace, local: Local) -> torch.Tensor:
    """Step by step, for torch's kernels draw numbers of their own."""
    query, key, value = parts[:3]
    times = query.shape[-3] // key.shape[-3]
    if times > 1:
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if a.scale is None else a.scale)
    if a.is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    for mask in parts[3:]:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return _dropped(scores.softmax(-1), a.dropout_p, local) @ value


@handles("scaled_dot_product_attention")
def _attention(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    """One operator: its heads and samples are cut, and so torch's fused kernels stay."""
    query, key, value = a.query, a.key, a.value
    if query.rank < 3 or not query.rank == key.rank == value.rank:
        raise recorder.refuse("scaled_dot_product_attention needs operands of equal and at least 3 dimensions")
    letters = Letters()
    lead = letters.take(query.rank - 2)
    heads, groups = lead, query.shape[-3] // key.shape[-3]
    sizes = {}
    if groups > 1 and a.enable_gqa:
        (g,) = letters.take(1)
        heads, sizes = (*lead[:-1], lead[-1] + g), {lead[-1]: key.shape[-3], g: groups}
    elif query.shape[:-2] != key.shape[:-2] or key.shape[:-2] != value.shape[:-2]:
        raise recorder.refuse("scaled_dot_product_attention with operands that are broadcast has no sharding rule")
    s, t, d, e = letters.take(4)
    uses = [(query, (*heads, s, d)), (key, (*lead, t, d)), (value, (*lead, t, e))]
    whole = t + d + e + (s if a.is_causal else "")
    if a.attn_mask is not None:
        target = (*query.shape[:-1], key.shape[-2])
        mask: list[str] = []
        for place, extent in enumerate(a.attn_mask.shape, query.rank - a.attn_mask.rank):
            same = extent == target[place]
            mask.append((*heads, s, t)[place] if same else letters.take(1)[0])
        uses.append((a.attn_mask, tuple(mask)))
    options = {"is_causal": a.is_causal, "scale": a.scale, "enable_gqa": a.enable_gqa}

    def run(parts: list[torch.Tensor], local: Local) -> torch.Tensor:
        if a.dropout_p:
            return _attention_with_dropout(parts, a, local)
        return functional.scaled_dot_product_attention(*parts[:3], *parts[3:], **options)

    flops = 2.0 * elements(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    return recorder.emit("custom", run, uses, (*heads, s, e), dtype, whole=whole, sizes=sizes, flops=flops)


# Over a dimension -----------------------------------------------------------------------------------------


@handles("softmax", "_softmax", "log_softmax", "_log_softmax")
def _softmax(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    value: Value = a.self
    term = Letters().take(value.rank)
    operation = torch.log_softmax if "log" in recorder.base else torch.softmax
    return recorder.emit(
        "softmax", lambda parts, _: operation(parts[0], a.dim, dtype=dtype), [(value, term)], term, dtype,
        whole=term[a.dim], flops=5.0 * elements(value.shape),
    )  # fmt: skip


def _normalise(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype, run: Any, parameters: list[Value]) -> Value:
    value: Value = a.input
    term = Letters().take(value.rank)
    normal = term[value.rank - len(a.normalized_shape) :]
    return recorder.emit(
        "layer_norm", run, [(value, term), *((parameter, normal) for parameter in parameters)], term, dtype,
        whole="".join(normal), flops=8.0 * elements(value.shape),
    )  # fmt: skip


@handles("layer_norm")
def _layer_norm(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    shape, eps, has_weight = list(a.normalized_shape), a.eps, a.weight is not None

    def run(parts: list[torch.Tensor], _: Local) -> torch.Tensor:
        weight = parts[1] if has_weight else None
        return functional.layer_norm(parts[0], shape, weight, parts[-1] if len(parts) > 1 + has_weight else None, eps)

    return _normalise(recorder, a, dtype, run, [p for p in (a.weight, a.bias) if p is not None])


@handles("rms_norm")
def _rms_norm(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    shape, eps = list(a.normalized_shape), a.eps

    def run(parts: list[torch.Tensor], _: Local) -> torch.Tensor:
        return functional.rms_norm(parts[0], shape, parts[1] if len(parts) > 1 else None, eps)

    return _normalise(recorder, a, dtype, run, [] if a.weight is None else [a.weight])


def _sum_over(
    recorder: Recorder, value: Value, dims: Any, keep: bool, dtype: torch.dtype, mean: bool = False, suffix: str = ""
) -> Value:
    """A mean is a sum of what is already divided: so parts of it add up to the whole."""
    over, term, result, sizes = reduced(value, dims, keep)
    count = elements([value.shape[dim] for dim in over])

    def run(parts: list[torch.Tensor], _: Local) -> torch.Tensor:
        made = parts[0].sum(over, keepdim=keep, dtype=dtype) if over else parts[0].to(dtype)
        return made / count if mean else made

    return recorder.emit(
        "reduce", run, [(value, term)], result, dtype,
        suffix=suffix, sizes=sizes, linear=True, flops=float(elements(value.shape)),
    )  # fmt: skip


@handles("sum")
def _sum(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    return _sum_over(recorder, a.self, getattr(a, "dim", None), getattr(a, "keepdim", False), dtype)


@handles("mean")
def _mean(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    return _sum_over(recorder, a.self, getattr(a, "dim", None), getattr(a, "keepdim", False), dtype, mean=True)


@handles("embedding")
def _embedding(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    letters = Letters()
    index = letters.take(a.indices.rank)
    v, h = letters.take(2)
    padding = a.padding_idx if a.padding_idx >= 0 else None
    if a.sparse or a.scale_grad_by_freq:
        raise recorder.refuse("embedding with sparse or scale_grad_by_freq has no sharding rule")

    def run(parts: list[torch.Tensor], _: Local) -> torch.Tensor:
        return functional.embedding(parts[0], parts[1], padding)

    kind = "custom" if a.indices.kind == "constant" else "embedding"
    return recorder.emit(
        kind, run, [(a.indices, index), (a.weight, (v, h))], (*index, h), dtype, whole=v, linear=kind == "custom"
    )


# Losses ---------------------------------------------------------------------------------------------------

_MEAN, _SUM = 1, 2


def _class_loss(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype, run: Any, smoothing: float) -> Value:
    logits, labels = a.self, a.target
    if a.weight is not None or a.reduction not in (_MEAN, _SUM) or labels.dtype.is_floating_point:
        raise recorder.refuse(f"{recorder.base} with weights, probabilities or without a reduction has no sharding rule")
    letters = Letters()
    term = letters.take(logits.rank)
    classes = term[min(1, logits.rank - 1)]
    samples = tuple(letter for letter in term if letter != classes)
    ignored, uses = a.ignore_index, [(logits, term), (labels, samples)]

    def count(parts: list[torch.Tensor], _: Local) -> torch.Tensor:
        return (parts[0] != ignored).sum().to(dtype)

    def divided(parts: list[torch.Tensor], local: Local) -> torch.Tensor:
        """A part of the mean: of these samples, by the number of all."""
        made: torch.Tensor = run(parts[:2], local) / parts[2]
        return made

    if a.reduction == _MEAN:
        counted = recorder.emit(
            "reduce", count, [(labels, samples)], (), dtype, suffix="/count", flops=float(elements(labels.shape))
        )
        uses.append((counted, ()))
    return recorder.emit(
        "cross_entropy", divided if a.reduction == _MEAN else run, uses, (), dtype,
        whole=classes, flops=(5.0 + 2 * (smoothing > 0)) * elements(logits.shape),
    )  # fmt: skip


@handles("cross_entropy_loss")
def _cross_entropy(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    def run(parts: list[torch.Tensor], _: Local) -> torch.Tensor:
        return functional.cross_entropy(
            parts[0], parts[1], ignore_index=a.ignore_index, reduction="sum", label_smoothing=a.label_smoothing
        )

    return _class_loss(recorder, a, dtype, run, a.label_smoothing)


@handles("nll_loss", "nll_loss_nd", "nll_loss2d")
def _nll_loss(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    def run(parts: list[torch.Tensor], _: Local) -> torch.Tensor:
        return functional.nll_loss(parts[0], parts[1], ignore_index=a.ignore_index, reduction="sum")

    return _class_loss(recorder, a, dtype, run, 0.0)


@handles("mse_loss")
def _mse_loss(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    (first, second), result = _broadcast(Letters(), [a.self.shape, a.target.shape])
    squares = recorder.emit(
        "elementwise", lambda parts, _: (parts[0] - parts[1]) ** 2, [(a.self, first), (a.target, second)], result, dtype,
        suffix="/square", flops=2.0 * elements(a.self.shape),
    )  # fmt: skip
    if a.reduction not in (_MEAN, _SUM):
        return squares
    return _sum_over(recorder, squares, None, False, dtype, mean=a.reduction == _MEAN)
