# SPDX-License-Identifier: Apache-2.0
"""The real vLLM on CPUs: a tiny Llama is served before and after updates by a trainer of another degree of tensor
parallelism, and says what one says that was loaded from the trainer's weights."""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import unittest

os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                  VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="CRITICAL", TOKENIZERS_PARALLELISM="false")  # fmt: skip

import torch
from torch.distributed.tensor import DeviceMesh, Replicate, Shard

import adapters_case as case
import ranks
import torch_case

TRAINERS = 2
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 250,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
PROMPTS = [[3, 141, 59, 26, 53], [7, 8], list(range(40, 70))]


def shapes():
    """Names of a checkpoint, shapes, and how the trainer's tensor parallelism splits them."""
    hidden, inter, vocab = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    keys = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    yield "model.embed_tokens.weight", (vocab, hidden), Shard(0)
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,), Replicate()
        yield at + "self_attn.q_proj.weight", (hidden, hidden), Shard(0)
        yield at + "self_attn.k_proj.weight", (keys, hidden), Shard(0)
        yield at + "self_attn.v_proj.weight", (keys, hidden), Shard(0)
        yield at + "self_attn.o_proj.weight", (hidden, hidden), Shard(1)
        yield at + "post_attention_layernorm.weight", (hidden,), Replicate()
        yield at + "mlp.gate_proj.weight", (inter, hidden), Shard(0)
        yield at + "mlp.up_proj.weight", (inter, hidden), Shard(0)
        yield at + "mlp.down_proj.weight", (hidden, inter), Shard(1)
    yield "model.norm.weight", (hidden,), Replicate()
    yield "lm_head.weight", (vocab, hidden), Shard(0)


def values(name, shape, version):
    seed = int.from_bytes(name.encode(), "little") % 1000003 + 7919 * version
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.1


def load(directory, weights, **options):
    from vllm import LLM

    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(CONFIG, file)
    return LLM(model=directory, load_format=weights, skip_tokenizer_init=True, enforce_eager=True, max_model_len=128,
               dtype="float32", **options)  # fmt: skip


def say(llm):
    """Tokens, and the probabilities from which they were chosen, to the last bit."""
    from vllm import SamplingParams

    llm.reset_prefix_cache()
    sampling = SamplingParams(temperature=0, max_tokens=12, detokenize=False, ignore_eos=True, logprobs=4)
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling, use_tqdm=False)
    return [
        [list(answer.outputs[0].token_ids)]
        + [sorted((token, entry.logprob) for token, entry in step.items()) for step in answer.outputs[0].logprobs]
        for answer in answers
    ]


def freshly_loaded(version):
    """What a vLLM says that reads a checkpoint of that version, in a process of its own."""
    command = [sys.executable, os.path.abspath(__file__), "--fresh", str(version)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def fresh(version):
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory() as directory:
        weights = {name: values(name, shape, version) for name, shape, _ in shapes()}
        save_file(weights, os.path.join(directory, "model.safetensors"), {"format": "pt"})
        print(json.dumps(say(load(directory, "safetensors"))))


class Client:
    """VLLMWeightSyncClient: rank 0 of the trainer calls the serving process."""

    def __init__(self, crew):
        self.crew = crew

    def init_weight_transfer_engine(self, init_info):
        self.crew.call("init", init_info)

    def start_weight_update(self):
        self.crew.call("start")

    def update_weights(self, update_info):
        self.crew.call("update", update_info)

    def finish_weight_update(self, weight_version=None):
        self.crew.call("finish")


def trainer(rank, crew, ports, versions, serving):
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    from crossmesh.adapters import vllm as adapter

    crew.lead() if rank == 0 else crew.look_on()
    assert serving.wait(ranks.TIMEOUT), "vLLM has not started"
    case.join_trainers(rank, ports[0], TRAINERS)
    mesh = DeviceMesh("cpu", torch.arange(TRAINERS), _init_backend=False, _rank=rank)
    state = {name: torch_case.make(torch.zeros(shape), mesh, [placement]) for name, shape, placement in shapes()}
    info = adapter.TrainerInitInfo("127.0.0.1", ports[1], trainer_world_size=TRAINERS, inference_world_size=1,
                                   rank=rank, timeout=ranks.TIMEOUT)  # fmt: skip
    source = adapter.ShardSource(state)
    metadata = source.metadata if isinstance(source.metadata, list) else source.metadata()
    assert [meta.name for meta in metadata] == [name for name, _, _ in shapes()]
    engine = WeightTransferTrainerFactory.trainer_init(info, client=Client(crew), source=source)
    for version in versions:
        for name, shape, placement in shapes():
            shard = torch_case.shard(values(name, shape, version), mesh, [placement])
            state[name].to_local().copy_(shard)
        engine.send_weights()
        if rank == 0:
            crew.call("say", version)
    engine.shutdown()
    case.leave()


class RealVllm(unittest.TestCase):
    def test_serves_what_the_trainer_has(self):
        fresh = [freshly_loaded(version) for version in range(2)]
        from vllm.config import WeightTransferConfig

        from crossmesh.adapters import vllm as adapter

        adapter.register()
        crew = case.Crew(1)
        serving = multiprocessing.Event()
        pids = ranks.start(TRAINERS, trainer, crew, [ranks.free_port(), ranks.free_port()], range(2), serving)
        said = []
        with tempfile.TemporaryDirectory() as directory:
            llm = load(directory, "dummy", weight_transfer_config=WeightTransferConfig(backend="crossmesh"))
            before = say(llm)
            serving.set()

            def answer(name, argument):
                if name == "init":
                    llm.init_weight_transfer_engine({"init_info": argument})
                elif name == "start":
                    llm.start_weight_update()
                elif name == "update":
                    llm.update_weights({"update_info": argument})
                elif name == "finish":
                    llm.finish_weight_update()
                else:
                    said.append(json.loads(json.dumps(say(llm))))

            crew.serve(0, answer)
        ranks.wait(pids)
        wanted = [json.loads(process.communicate(timeout=ranks.TIMEOUT)[0].splitlines()[-1]) for process in fresh]
        self.assertNotEqual(wanted[0], wanted[1])
        self.assertEqual(said, wanted)
        self.assertNotEqual(json.loads(json.dumps(before)), wanted[0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fresh"]:
        sys.exit(fresh(int(sys.argv[2])))
    sys.exit(unittest.main())
