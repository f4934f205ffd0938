# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's refit by crossmesh: `swap_model_weights(src, dst, refit_method=crossmesh.megatron.CopyService())`."""

from .adapters.megatron import __getattr__ as __getattr__
