# SPDX-License-Identifier: Apache-2.0
"""From a module to the planner's operator graph, by torch.export."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.export
import torch.utils.checkpoint

from ..errors import InputError
from . import _along, _movement  # noqa: F401  (their operators are in HANDLERS)
from ._lowering import HANDLERS, is_pointwise, lower_pointwise
from ._operators import Program, Recorder, Value

__all__ = ["Loss", "batch_of", "export_program", "micro_batch"]

Loss = Callable[[Any, Any], torch.Tensor]

# Operators that compute nothing.
_SILENT = {"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range_for_size"}


class _WithLoss(torch.nn.Module):  # type: ignore[misc]
    """What a training step runs forward. Plain attributes that torch.export takes as the module's own."""

    def __init__(self, model: torch.nn.Module, loss: Loss | None, keywords: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.keywords = list(keywords)

    def forward(self, *inputs: Any) -> Any:
        given = inputs if self.loss is None else inputs[:-1]
        place = len(given) - len(self.keywords)
        output = self.model(*given[:place], **dict(zip(self.keywords, given[place:])))
        if self.loss is not None:
            return self.loss(output, inputs[-1])
        return output["loss"] if isinstance(output, Mapping) and "loss" in output else output


def batch_of(inputs: Sequence[torch.Tensor]) -> int:
    """Samples: the first dimension of the first input that has one."""
    for value in inputs:
        if value.ndim > 0:
            return int(value.shape[0])
    raise InputError("no input of the model has a dimension, so there is no batch to plan for")


def micro_batch(inputs: Sequence[torch.Tensor], batch: int, count: int, number: int) -> list[torch.Tensor]:
    """Every input that begins with the batch is cut; the others belong to each micro-batch."""
    size = batch // count
    return [
        value.narrow(0, number * size, size) if value.ndim > 0 and value.shape[0] == batch else value for value in inputs
    ]


@contextlib.contextmanager
def _checkpoints() -> Iterator[list[str]]:
    """The calls of torch.utils.checkpoint inside: torch.export traces through them and leaves nothing of them."""
    calls: list[str] = []
    module = torch.utils.checkpoint
    with contextlib.ExitStack() as stack:
        for owner, name in ((module, "_checkpoint_without_reentrant_generator"), (module.CheckpointFunction, "apply")):
            way = getattr(owner, name, None)
            if way is None:
                continue

            def counted(*args: Any, _way: Any = way, _name: str = name, **kwargs: Any) -> Any:
                calls.append(_name)
                return _way(*args, **kwargs)

            own = name in vars(owner)
            setattr(owner, name, counted)
            stack.callback(*((setattr, owner, name, way) if own else (delattr, owner, name)))
        yield calls


def _exported(model: torch.nn.Module, inputs: Sequence[torch.Tensor], loss: Loss | None, keywords: Sequence[str]) -> Any:
    whole = _WithLoss(model, loss, keywords)
    whole.train(model.training)
    try:
        program = torch.export.export(whole, tuple(inputs), strict=False)
        schemas = [getattr(node.target, "_schema", None) for node in program.graph.nodes]
        if any(schema is not None and schema.is_mutable for schema in schemas):
            program = program.run_decompositions({})  # of what is changed in place
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"torch.export cannot export {type(model).__name__}: {reason}") from error
    signature = program.graph_signature
    for kind in ("buffers_to_mutate", "parameters_to_mutate", "user_inputs_to_mutate"):
        for name in (getattr(signature, kind, None) or {}).values():
            raise InputError(f"'{name.removeprefix('model.')}' is changed by the forward pass: only parameters may change")
    return program


def _module_of(node: torch.fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(entry[0]) for entry in stack.values()]
    path = paths[-1] if paths else ""
    path = path.removeprefix("L['self']").removeprefix(".")
    return path.removeprefix("model").removeprefix(".")


class _Reader:
    def __init__(self, model: torch.nn.Module, program: Program, exported: Any) -> None:
        self.program, self.exported = program, exported
        self.recorder = Recorder(program)
        self.values: dict[torch.fx.Node, Any] = {}
        self.first_names: dict[int, str] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            first = self.first_names.setdefault(id(parameter), name)
            program.aliases[name] = first
            if first == name:
                self.recorder.reserve(name)

    def of(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return self.values[argument]
        if isinstance(argument, (list, tuple)):
            return [self.of(entry) for entry in argument]
        return argument

    def placeholder(self, node: torch.fx.Node) -> Value:
        signature = self.exported.graph_signature
        fake = node.meta["val"]
        if not isinstance(fake, torch.Tensor):
            raise InputError(f"input '{node.name}' is {type(fake).__name__}, not a tensor: bind it before planning")
        shape = tuple(int(extent) for extent in fake.shape)
        if node.name in signature.inputs_to_parameters:
            full = signature.inputs_to_parameters[node.name]
            if not full.startswith("model."):
                raise InputError(f"the loss has a parameter of its own, '{full}': make it one of the model's")
            name = self.program.aliases[full.removeprefix("model.")]
            return self.program.parameters.setdefault(name, Value(name, shape, fake.dtype, "parameter"))
        for table, data in (
            (signature.inputs_to_buffers, {**self.exported.constants, **self.exported.state_dict}),
            (signature.inputs_to_lifted_tensor_constants, self.exported.constants),
        ):
            if node.name in table:
                return Value(node.name, shape, fake.dtype, "constant", data=data[table[node.name]].detach())
        name = self.recorder.reserve(node.name)
        return self.program.inputs.setdefault(name, Value(name, shape, fake.dtype, "input"))

    def constant(self, target: Any, args: Any, kwargs: Any) -> Any:
        """What depends on nothing but constants, computed."""

        def data(argument: Any) -> Any:
            if isinstance(argument, list):
                return [data(entry) for entry in argument]
            return argument.data if isinstance(argument, Value) else argument

        with torch.no_grad():
            made = target(*data(args), **{name: data(value) for name, value in kwargs.items()})
        return self.kept(made)

    def kept(self, made: Any) -> Any:
        if isinstance(made, torch.Tensor):
            return Value("constant", tuple(made.shape), made.dtype, "constant", data=made)
        if isinstance(made, (list, tuple)):
            return tuple(self.kept(entry) for entry in made)
        return made

    def call(self, node: torch.fx.Node) -> Any:
        target: Any = node.target
        args = self.of(list(node.args))
        if target is operator.getitem:
            return args[0][args[1]]
        kwargs = {name: self.of(value) for name, value in node.kwargs.items()}
        schema = getattr(target, "_schema", None)
        if schema is None:
            raise self.recorder.refuse(f"the planner knows no sharding rule for {target}")
        if target._opname in _SILENT:
            return None
        if torch.Tag.nondeterministic_seeded in target.tags and target._opname not in HANDLERS:
            raise self.recorder.refuse(f"{target} draws random numbers, of which copies would get different ones; dropout may")
        lists = [argument if isinstance(argument, list) else [argument] for argument in (*args, *kwargs.values())]
        tensors = [entry for argument in lists for entry in argument if isinstance(entry, Value)]
        if all(value.kind == "constant" for value in tensors):
            return self.constant(target, args, kwargs)
        result = node.meta.get("val")
        dtype = result.dtype if isinstance(result, torch.Tensor) else tensors[0].dtype
        self.recorder.base, self.recorder.target = node.name, target
        self.recorder.shape = tuple(result.shape) if isinstance(result, torch.Tensor) else ()
        handler = HANDLERS.get(target._opname)
        if handler is None and is_pointwise(target):
            return lower_pointwise(self.recorder, target, args, kwargs, dtype)
        if handler is None:
            raise self.recorder.refuse(f"the planner knows no sharding rule for {target}")
        bound = {}
        for place, argument in enumerate(schema.arguments):
            default = argument.default_value if argument.has_default_value() else None
            bound[argument.name] = args[place] if place < len(args) else kwargs.get(argument.name, default)
        return handler(self.recorder, SimpleNamespace(**bound), dtype)

    def autocast(self, node: torch.fx.Node) -> tuple[Any, ...]:
        """What torch.export has put into a graph of its own: what ran under torch.autocast."""
        device, dtype, enabled, _, inner, *operands = self.of(list(node.args))
        outside, self.recorder.autocast = self.recorder.autocast, (device, dtype, enabled)
        made = self.read(inner, iter(operands))
        self.recorder.autocast = outside
        return tuple(made)

    def read(self, graph: torch.fx.GraphModule, given: Iterator[Any] | None = None) -> list[Any]:
        """The values that the graph gives, of values that it is given: those of the model, where it is the whole."""
        made: list[Any] = []
        for node in graph.graph.nodes:
            self.recorder.module = _module_of(node)
            if node.op == "placeholder":
                self.values[node] = self.placeholder(node) if given is None else next(given)
            elif node.op == "call_function" and node.target is torch.ops.higher_order.wrap_with_autocast:
                self.values[node] = self.autocast(node)
            elif node.op == "call_function":
                self.values[node] = self.call(node)
            elif node.op == "output":
                made = self.of(list(node.args[0]))
            elif node.op == "get_attr" and isinstance(getattr(graph, node.target, None), torch.fx.GraphModule):
                self.values[node] = getattr(graph, node.target)
            else:
                raise self.recorder.refuse(f"torch.export left '{node.op}' of {node.target}, which has no sharding rule")
        return made

    def end(self, outputs: Sequence[Any]) -> None:
        values = [value for value in outputs if isinstance(value, Value)]
        if len(values) != 1 or values[0].shape != ():
            shapes = ", ".join(str(value.shape) for value in values) or "nothing"
            raise InputError(f"the model gives {shapes}: training needs a loss, one number; give loss and target")
        if values[0].kind != "result":
            raise InputError("the loss does not depend on the model's parameters and inputs")
        self.program.loss = values[0].name


def export_program(
    model: torch.nn.Module, inputs: Sequence[torch.Tensor], loss: Loss | None, keywords: Sequence[str] = ()
) -> Program:
    """The forward pass and loss of one micro-batch. `inputs` are the model's arguments, the last of them by these keywords,
    and, with a loss, the target."""
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            raise InputError(f"an argument of the model is {type(value).__name__}, not a tensor: bind it before planning")
    program = Program(type(model).__name__)
    with _checkpoints() as calls:
        exported = _exported(model, inputs, loss, keywords)
    program.checkpoints = len(calls)
    reader = _Reader(model, program, exported)
    reader.end(reader.read(exported.graph_module))
    program.arguments = list(program.inputs)
    program.prune()
    if not program.parameters:
        raise InputError("the loss depends on no parameter of the model")
    order = {name: place for place, name in enumerate(program.aliases)}
    program.parameters = dict(sorted(program.parameters.items(), key=lambda item: order[item[0]]))
    return program
