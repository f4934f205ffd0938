#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tensor lists of two large models and the parallel configurations that move them.

The shapes follow from the models' public config.json. The files are inputs of `reshard-bench --model-config
--system-config` and of `plan_scale --case files`; they are large and quick to make, so they are made where they are needed.

Usage: public_models.py DIRECTORY [--layers N]
"""
import argparse
import json
import pathlib


def qwen3_235b(layers):
    """Qwen3-235B-A22B, bfloat16."""
    hidden, experts, inner, head = 4096, 128, 1536, 128
    sizes = {"model.embed_tokens": [151936, hidden], "model.norm": [hidden], "lm_head": [151936, hidden]}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        sizes.update({
            at + "input_layernorm": [hidden], at + "post_attention_layernorm": [hidden],
            at + "self_attn.q_proj": [64 * head, hidden], at + "self_attn.k_proj": [4 * head, hidden],
            at + "self_attn.v_proj": [4 * head, hidden], at + "self_attn.o_proj": [hidden, 64 * head],
            at + "self_attn.q_norm": [head], at + "self_attn.k_norm": [head], at + "mlp.gate": [experts, hidden]})
        for expert in range(experts):
            sizes.update(feed_forward(f"{at}mlp.experts.{expert}.", hidden, inner))
    return {name + ".weight": {"shape": shape, "dtype": "BF16"} for name, shape in sizes.items()}


def feed_forward(at, hidden, inner):
    """The three matrices of a gated feed-forward."""
    return {at + "gate_proj": [inner, hidden], at + "up_proj": [inner, hidden], at + "down_proj": [hidden, inner]}


def deepseek_v3(layers):
    """DeepSeek-V3 as published: FP8 with a float scale for each block of 128 x 128; without its module for
    multi-token prediction."""
    hidden, heads = 7168, 128
    tensors = {}

    def add(name, shape, dtype="BF16"):
        tensors[name + ".weight"] = {"shape": shape, "dtype": dtype}

    def add_blocks(sizes):
        for name, shape in sizes.items():
            add(name, shape, "F8_E4M3")
            tensors[name + ".weight_scale_inv"] = {"shape": [-(-extent // 128) for extent in shape], "dtype": "F32"}

    add("model.embed_tokens", [129280, hidden])
    for layer in range(layers):
        at = f"model.layers.{layer}."
        add(at + "input_layernorm", [hidden])
        add(at + "post_attention_layernorm", [hidden])
        add(at + "self_attn.q_a_layernorm", [1536])
        add(at + "self_attn.kv_a_layernorm", [512])
        add_blocks({at + "self_attn.q_a_proj": [1536, hidden], at + "self_attn.q_b_proj": [heads * 192, 1536],
                    at + "self_attn.kv_a_proj_with_mqa": [512 + 64, hidden],
                    at + "self_attn.kv_b_proj": [heads * 256, 512], at + "self_attn.o_proj": [hidden, heads * 128]})
        if layer < 3:
            add_blocks(feed_forward(at + "mlp.", hidden, 18432))
            continue
        add(at + "mlp.gate", [256, hidden])
        tensors[at + "mlp.gate.e_score_correction_bias"] = {"shape": [256], "dtype": "F32"}
        add_blocks(feed_forward(at + "mlp.shared_experts.", hidden, 2048))
        for expert in range(256):
            add_blocks(feed_forward(f"{at}mlp.experts.{expert}.", hidden, 2048))
    add("model.norm", [hidden])
    add("lm_head", [129280, hidden])
    return tensors


def parallel(num_gpus, **sizes):
    """One side of a system configuration; what is not given is 1."""
    names = ("tp", "cp", "ep", "pp", "fsdp", "dp")
    return {"num_gpus": num_gpus, **{f"{name}_size": sizes.get(name, 1) for name in names}}


# Model, layers, training, serving. Stages and expert groups as in the models' reports.
MODELS = {
    "qwen3-235b": (qwen3_235b, 94, parallel(64, tp=2, pp=4, ep=8, dp=8), parallel(64, ep=64, dp=64)),
    "deepseek-v3": (deepseek_v3, 61, parallel(128, pp=8, ep=16, dp=16), parallel(128, ep=64, dp=128)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--layers", type=int, help="only the first so many layers")
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    for name, (tensors, layers, train, generation) in MODELS.items():
        model = tensors(min(layers, args.layers or layers))
        (args.directory / f"{name}.model.json").write_text(json.dumps(model))
        system = {"train": train, "generation": generation}
        (args.directory / f"{name}.system.json").write_text(json.dumps(system, indent=4))


if __name__ == "__main__":
    main()
