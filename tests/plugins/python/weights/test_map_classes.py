# SPDX-License-Identifier: Apache-2.0
"""Maps found by running the loaders of real model classes: Hugging Face's parameters to the names and shapes of its
checkpoints and back, and to vLLM's tensor-parallel ones. What the maps make of random weights is compared with what the loaders do."""

import importlib.util
import os
import sys
import tempfile
import unittest

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", TRANSFORMERS_OFFLINE="1", HF_DEACTIVATE_ASYNC_LOAD="1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import torch
import transformers
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model, revert_weight_conversion
from transformers.modeling_utils import LoadStateDictConfig

import ranks
from crossmesh.torch import record

VLLM = importlib.util.find_spec("vllm")
if VLLM:  # before the ranks are forked: it takes long
    from vllm.config import set_current_vllm_config
    from vllm.distributed import destroy_model_parallel, init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

SMALL = {"vocab_size": 250, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}  # fmt: skip
LATENT = {"moe_intermediate_size": 32, "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
          "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "qk_nope_head_dim": 16,
          "first_k_dense_replace": 1, "n_shared_experts": 1, "num_key_value_heads": 4,
          "topk_method": "noaux_tc", "scoring_func": "sigmoid"}  # fmt: skip
FAMILIES = {
    "Llama": {"tie_word_embeddings": True},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Mistral": {"head_dim": 16},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3": LATENT,
}


def config_of(family):
    config = getattr(transformers, family + "Config")(**{**SMALL, **FAMILIES[family]})
    config.architectures = [family + "ForCausalLM"]
    return config


def trained(family):
    """Hugging Face's model without memory, what a trainer has of it, and random values for that."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config_of(family))
    state = {name: tensor for name, tensor in model.state_dict().items() if "rotary" not in name}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    generator = torch.Generator().manual_seed(len(state))
    values = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in state.items()}
    return model, {name: (tuple(tensor.shape), torch.float32) for name, tensor in state.items()}, values


def moved(pieces, values, targets):
    """What the pieces make of values, by slices."""
    for piece in pieces:
        if piece.source:
            box = values[piece.source][tuple(slice(*side) for side in piece.box)]
            order = [axis for axis in piece.axes if axis >= 0]
            rest = [d for d in range(box.dim()) if d not in order]
            shape = [high - low for low, high in piece.at]
            targets[piece.target][tuple(slice(*side) for side in piece.at)] = box.permute(order + rest).reshape(shape)
    return targets


def same(left, right, what):
    assert left.keys() == right.keys(), (what, left.keys() ^ right.keys())
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), (what, name)


def through_a_checkpoint(family):
    model, weights, values = trained(family)
    saved = revert_weight_conversion(model, values)
    there = record(lambda given: revert_weight_conversion(model, dict(given)), weights)
    empty = {name: torch.full(tensor.shape, torch.nan) for name, tensor in saved.items()}
    same(moved(there, values, empty), saved, f"{family} to a checkpoint")

    def load(given):
        options = LoadStateDictConfig(device_map={"": "meta"}, weight_mapping=get_model_conversion_mapping(model))
        convert_and_load_state_dict_in_model(model, dict(given), options, None)
        return {name: tensor for name, tensor in model.state_dict().items() if name in values}

    back = record(load, {name: (tuple(tensor.shape), torch.float32) for name, tensor in saved.items()})
    empty = {name: torch.full(tensor.shape, torch.nan) for name, tensor in values.items()}
    same(moved(back, saved, empty), values, f"{family} from a checkpoint")
    return len(there), len(back)


def served(rank, size, meeting):
    """vLLM's classes with tensor parallelism, each rank's parameters straight from Hugging Face's."""
    torch.set_num_threads(1)
    os.environ["VLLM_DIST_IDENT"] = os.path.basename(os.path.dirname(meeting))  # of memory that its ranks share
    for number, family in enumerate(FAMILIES):
        with tempfile.TemporaryDirectory() as folder:
            config_of(family).save_pretrained(folder)
            engine = EngineArgs(model=folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True,
                                max_model_len=128, dtype="float32", tensor_parallel_size=size,
                                distributed_executor_backend="mp").create_engine_config()  # fmt: skip
        with set_current_vllm_config(engine):
            if number == 0:
                init_distributed_environment(size, rank, f"file://{meeting}", rank, "gloo")
            initialize_model_parallel(size)
            model = initialize_model(engine)
        trainer, weights, values = trained(family)
        for parameter in model.parameters():
            parameter.data.fill_(0)

        def load(given, model=model, trainer=trainer):
            model.load_weights(iter(revert_weight_conversion(trainer, dict(given)).items()))

        pieces = record(load, weights, model)
        found = moved(pieces, values, {name: torch.zeros(p.shape) for name, p in model.named_parameters()})
        load(values.items())
        same(found, {name: p.data for name, p in model.named_parameters()}, f"{family} on rank {rank}")
        if rank == 0:
            print(f"{type(model).__module__}: {len(pieces)} pieces of {len(weights)} tensors")
        destroy_model_parallel()


class Classes(unittest.TestCase):
    def test_through_a_checkpoint(self):
        for family in FAMILIES:
            with self.subTest(family):
                print(family, *through_a_checkpoint(family))

    @unittest.skipUnless(VLLM, "vLLM is not installed")
    def test_served(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(2, served, 2, os.path.join(folder, "meeting"), timeout=8 * ranks.TIMEOUT)


if __name__ == "__main__":
    sys.exit(unittest.main())
