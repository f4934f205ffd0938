# SPDX-License-Identifier: Apache-2.0
"""vLLM's models whose parameters are not as they were loaded: packed for a processor, quantised, absorbed.

vLLM reloads such a layer by making its parameters anew, loading them, and processing them again. Here the loader is
called with weights that have no memory, as when it was traced, and gets the pieces that this rank has received.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..torch._describe import Described
from ._tracing import Piece, trace
from ._weights import shapes_of

# What leaves parameters as they are.
PLAIN = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")


def _layerwise() -> Any:
    try:
        from vllm.model_executor.model_loader.reload import layerwise
    except ImportError:
        return None
    return layerwise


def needed(model: torch.nn.Module) -> bool:
    """Whether something other than loading has made the model's parameters."""
    layerwise = _layerwise()
    if layerwise is None:
        return False
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if "MLA" in type(layer).__name__ or (method is not None and type(method).__name__ not in PLAIN):
            return True
        loaded = layerwise.get_layerwise_info(layer).restore_metadata[0]
        for name, parameter in layer.named_parameters(recurse=False):
            form = loaded.get(name, parameter)
            if (form.shape, form.dtype, form.stride()) != (parameter.shape, parameter.dtype, parameter.stride()):
                return True
    return False


class Reloader:
    """A `dst` of a WeightTransfer, into memory beside the model; `reload()` takes it over. Until then the model has its
    former weights."""

    def __init__(self, model: Any, config: Any, device: torch.device) -> None:
        self._model, self._config, self._device = model, config, device
        self._weights: dict[str, Any] = {}
        self._held: dict[str, list[Piece]] = {}

    def __call__(self, known: Mapping[str, Described]) -> dict[str, list[Piece]]:
        self._weights = shapes_of(known)
        with _as_loaded(self._model):
            traced = trace(self._model.load_weights, self._weights)
        self._held = {
            name: [Piece(box, torch.empty(t.shape, dtype=t.dtype, device=self._device)) for box, t in pieces]
            for name, pieces in traced.items()
        }
        return self._held

    def reload(self) -> None:
        layerwise = _layerwise()

        def load(weights: Any) -> None:
            self._model.load_weights(weights)
            # Which loads the layers that are not whole, such as a padded vocabulary.
            layerwise.finalize_layerwise_reload(self._model, self._config)

        layerwise.initialize_layerwise_reload(self._model)
        trace(load, self._weights, self._held)


@contextlib.contextmanager
def _as_loaded(model: torch.nn.Module) -> Iterator[None]:
    """With parameters as they are loaded, without memory."""
    layerwise, done = _layerwise(), []
    try:
        for layer in model.modules():
            info = layerwise.get_layerwise_info(layer)
            info.kernel_tensors = layerwise.get_layer_params_buffers(layer)
            info.kernel_non_persistent_buffers = set(layer._non_persistent_buffers_set)
            done.append((layer, info))
            layerwise.restore_layer_on_meta(layer, info)
        yield
    finally:
        for layer, info in done:
            layerwise._place_kernel_tensors(layer, info)
            info.reset()
