# SPDX-License-Identifier: Apache-2.0
"""Operators that need a dimension whole: along it they choose, order, scatter and sum up; over images, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as functional

from ._lowering import Letters, handles, reduced
from ._operators import Recorder, Term, Value, elements

Run = Callable[..., torch.Tensor]


def _emit(
    recorder: Recorder, uses: Sequence[tuple[Value, Term]], result: Term, dtype: torch.dtype, run: Run, *,
    sizes: dict[str, int] | None = None, whole: str = "", flops: float | None = None, suffix: str = "", linear: bool = False,
) -> Value:  # fmt: skip
    cost = float(elements(uses[0][0].shape)) if flops is None else flops
    return recorder.emit(
        "custom", lambda parts, _: run(*parts), uses, result, dtype,
        suffix=suffix, whole=whole, sizes=sizes, flops=cost, linear=linear,
    )  # fmt: skip


def _same_shape(recorder: Recorder, value: Value, dim: int, dtype: torch.dtype, run: Run, linear: bool = False) -> Value:
    term = Letters().take(value.rank)
    return _emit(recorder, [(value, term)], term, dtype, run, whole=term[dim], linear=linear)


@handles("cumsum")
def _cumsum(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    return _same_shape(recorder, a.self, a.dim, dtype, lambda x: x.cumsum(a.dim, dtype=dtype), linear=True)


@handles("flip", "roll")
def _flip(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    term, dims = Letters().take(a.self.rank), list(a.dims)
    run: Run = (lambda x: x.roll(a.shifts, dims)) if hasattr(a, "shifts") else (lambda x: x.flip(dims))
    return _emit(recorder, [(a.self, term)], term, dtype, run, whole="".join(term[d] for d in dims), linear=True)


def _chosen(recorder: Recorder, a: SimpleNamespace, count: int, dtypes: Sequence[torch.dtype], run: Any) -> tuple[Value, ...]:
    """Values and their places: an operator for each, of which the second has no gradient."""
    made = []
    for number, (dtype, suffix) in enumerate(zip(dtypes, ("", "/places"))):
        letters = Letters()
        term, (chosen,) = letters.take(a.self.rank), letters.take(1)
        dim = a.dim % a.self.rank
        result = (*term[:dim], chosen, *term[dim + 1 :])
        made.append(_emit(
            recorder, [(a.self, term)], result, dtype, lambda x, n=number: run(x)[n],
            sizes={chosen: count}, whole=term[dim] + chosen, suffix=suffix,
        ))  # fmt: skip
    return tuple(made)


@handles("topk")
def _topk(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> tuple[Value, ...]:
    kinds = (a.self.dtype, torch.int64)
    return _chosen(recorder, a, a.k, kinds, lambda x: torch.topk(x, a.k, a.dim, a.largest, a.sorted))


@handles("sort")
def _sort(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> tuple[Value, ...]:
    kinds = (a.self.dtype, torch.int64)
    return _chosen(
        recorder, a, a.self.shape[a.dim], kinds, lambda x: torch.sort(x, dim=a.dim, descending=a.descending, stable=True)
    )


def _reduced(recorder: Recorder, a: SimpleNamespace, dims: Any, dtype: torch.dtype, run: Run) -> Value:
    over, term, result, sizes = reduced(a.self, dims, getattr(a, "keepdim", False))
    whole = "".join(term[d] for d in over) + "".join(sizes)
    return _emit(recorder, [(a.self, term)], result, dtype, run, sizes=sizes, whole=whole)


@handles("logsumexp", "amax", "amin")
def _logsumexp(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    operation = {"logsumexp": torch.logsumexp, "amax": torch.amax, "amin": torch.amin}
    run = next(operation[name] for name in operation if name in recorder.base)
    return _reduced(recorder, a, a.dim, dtype, lambda x: run(x, a.dim, a.keepdim))


@handles("argmax", "argmin")
def _argmax(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    run = torch.argmax if "argmax" in recorder.base else torch.argmin
    return _reduced(recorder, a, a.dim, torch.int64, lambda x: run(x, a.dim, a.keepdim))


@handles("one_hot")
def _one_hot(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    if a.num_classes < 1:
        raise recorder.refuse("one_hot without a number of classes has a shape that depends on data")
    letters = Letters()
    term, (classes,) = letters.take(a.self.rank), letters.take(1)
    run: Run = lambda x: functional.one_hot(x, a.num_classes)  # noqa: E731
    return _emit(recorder, [(a.self, term)], (*term, classes), dtype, run, sizes={classes: a.num_classes}, whole=classes)


@handles("gather", "scatter", "scatter_add")
def _scatter(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    """Along one dimension; the others are cut as long as all that takes part has them alike."""
    dim, letters = a.dim % a.self.rank, Letters()
    term = letters.take(a.self.rank)
    (chosen,) = letters.take(1)
    source = getattr(a, "src", getattr(a, "value", None))
    for d, (extent, other) in enumerate(zip(a.self.shape, a.index.shape)):
        if d != dim and extent != other:
            raise recorder.refuse(f"{recorder.base} with an index that is narrower than what it takes part in has no sharding rule")
    index = (*term[:dim], chosen, *term[dim + 1 :])
    uses = [(a.self, term), (a.index, index)]
    if isinstance(source, Value):
        if source.shape != a.index.shape:
            raise recorder.refuse(f"{recorder.base} of a part of its source has no sharding rule")
        uses.append((source, index))
    whole = term[dim] + chosen
    if source is None:
        return _emit(recorder, uses, index, dtype, lambda x, i: x.gather(dim, i), whole=whole)
    add = "scatter_add" in recorder.base
    if isinstance(source, Value):
        run: Run = lambda x, i, s: (x.scatter_add if add else x.scatter)(dim, i, s)  # noqa: E731
    else:
        run = lambda x, i: x.scatter(dim, i, source)  # noqa: E731
    return _emit(recorder, uses, term, dtype, run, whole=whole)


# Images -------------------------------------------------------------------------------------------------------


def _image(letters: Letters, value: Value, shape: Sequence[int]) -> tuple[Term, Term, dict[str, int]]:
    """Terms of an image and of its result: samples are cut, what windows move over is whole."""
    outer = letters.take(2)
    inside, outside = letters.take(value.rank - 2), letters.take(value.rank - 2)
    return (*outer, *inside), (*outer, *outside), dict(zip(outside, shape))


@handles("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d")
def _convolution(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    """Samples are cut, and, without groups, the channels that are made."""
    value, weight, bias = a.input, a.weight, a.bias
    turned = "transpose" in recorder.base or getattr(a, "transposed", False)
    rank = value.rank - 2
    made = recorder.shape
    letters = Letters()
    n, c, o = letters.take(3)
    inside, outside, window = letters.take(rank), letters.take(rank), letters.take(rank)
    sizes = {o: made[1], **dict(zip(outside, made[2:]))}
    whole = "".join((c, *inside, *outside, *window))
    i = c if weight.shape[0 if turned else 1] == value.shape[1] else letters.take(1)[0]
    whole += i if i != c else ""
    if a.groups > 1:
        whole += o
    places = (i, o) if turned else (o, i)
    if turned and a.groups > 1:
        raise recorder.refuse("a transposed convolution in groups has no sharding rule")
    uses = [(value, (n, c, *inside)), (weight, (*places, *window))]
    if bias is not None:
        uses.append((bias, (o,)))
    options: dict[str, Any] = {"stride": a.stride, "padding": a.padding, "dilation": a.dilation, "groups": a.groups}
    if turned:
        options["output_padding"] = a.output_padding
    name = f"conv{'_transpose' if turned else ''}{rank}d"
    operation: Any = getattr(functional, name)
    flops = 2.0 * elements(made) * elements(weight.shape) / made[1]
    return _emit(
        recorder, uses, (n, o, *outside), dtype, lambda x, w, b=None: operation(x, w, b, **options),
        sizes=sizes, whole=whole, flops=flops,
    )  # fmt: skip


@handles("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d")
def _pool(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    """Channel by channel."""
    options = dict(vars(a))
    value = options.pop("self", None) or options.pop("input")
    source, result, sizes = _image(Letters(), value, recorder.shape[2:])
    target, kwargs = recorder.target, {name: entry for name, entry in options.items()}
    whole = "".join((*source[2:], *result[2:]))

    def run(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = target(x, **kwargs)
        return made

    return _emit(recorder, [(value, source)], result, dtype, run, sizes=sizes, whole=whole)


@handles("group_norm")
def _group_norm(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    term = Letters().take(a.input.rank)
    uses = [(a.input, term), *((p, (term[1],)) for p in (a.weight, a.bias) if p is not None)]
    has_weight = a.weight is not None

    def run(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        weight = rest[0] if has_weight else None
        return functional.group_norm(x, a.num_groups, weight, rest[-1] if len(rest) > has_weight else None, a.eps)

    return _emit(recorder, uses, term, dtype, run, whole="".join(term[1:]), flops=8.0 * elements(a.input.shape))


@handles("batch_norm")
def _batch_norm(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    """In training the statistics are those of the samples of a micro-batch that a rank has, as data parallelism has them."""
    term = Letters().take(a.input.rank)
    names = ("running_mean", "running_var", "weight", "bias")
    there = [name for name in names if getattr(a, name) is not None]
    uses = [(a.input, term), *((getattr(a, name), (term[1],)) for name in there)]

    def run(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        given = {**dict.fromkeys(names), **dict(zip(there, rest))}
        return functional.batch_norm(x, **given, training=a.training, momentum=a.momentum, eps=a.eps)

    return _emit(recorder, uses, term, dtype, run, whole="".join(term[2:]), flops=8.0 * elements(a.input.shape))


@handles("pad", "constant_pad_nd")
def _pad(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    pads = list(a.pad)
    touched = {a.self.rank - 1 - at // 2 for at, count in enumerate(pads) if count}
    letters = Letters()
    term = letters.take(a.self.rank)
    result = tuple(letters.take(1)[0] if d in touched else letter for d, letter in enumerate(term))
    sizes = {result[d]: recorder.shape[d] for d in touched}
    mode, value = getattr(a, "mode", "constant"), getattr(a, "value", None)
    whole = "".join(term[d] + result[d] for d in touched)
    return _emit(
        recorder, [(a.self, term)], result, dtype, lambda x: functional.pad(x, pads, mode, value), sizes=sizes, whole=whole,
        linear=not value,
    )  # fmt: skip


# Values that are the same everywhere ----------------------------------------------------------------------------


@handles("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
def _filled(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    """Of a shape only."""
    made = torch.full(recorder.shape, getattr(a, "fill_value", float("ones" in recorder.base)), dtype=dtype)
    return Value(recorder.base, recorder.shape, dtype, "constant", data=made)
