# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's refit by crossmesh: `swap_model_weights(src, dst, refit_method=crossmesh.megatron.CopyService())`."""

from typing import Any


def __getattr__(name: str) -> Any:
    from .adapters import megatron

    return getattr(megatron, name)
