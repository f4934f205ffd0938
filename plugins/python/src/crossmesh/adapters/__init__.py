# SPDX-License-Identifier: Apache-2.0
"""Entries for the registries of other frameworks, which move weights by crossmesh.

    crossmesh.adapters.vllm     weight transfer backend "crossmesh"
    crossmesh.adapters.verl     checkpoint engine "crossmesh"
    crossmesh.adapters.ray      tensor transport "crossmesh"
    crossmesh.megatron          CopyService

Each is imported without its framework, and needs it when it is registered. All need PyTorch. See docs/adapters.md.
"""
