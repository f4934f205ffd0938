# SPDX-License-Identifier: Apache-2.0
"""crossmesh.torch.probe(): what it adds to a profile is complete, the same on all ranks, and what plan() counts with."""

import copy
import itertools
import os
import re
import time
import unittest
import unittest.mock

import torch
import torch.distributed as dist

import plan_case
import ranks
import torch_case
from crossmesh.torch import _probe, plan, probe
from crossmesh.torch._partition import StageModule
from crossmesh.torch._redistribute import redistributed


def mean_square(output, target):
    return (output - target).square().mean()


def model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))


def predicts(profile, made, batch, common):
    text = re.findall(r"takes (.+?) samples on one of them;", profile["provenance"])[-1]
    sizes = {int(size): float(seconds) for seconds, size in re.findall(r"(\S+) s for (\d+)", text)}
    assert list(sizes) == [32, 16, 4], text
    for size, measured in sizes.items():
        given = {**common, "target": common["target"][:size]}
        alone = plan(made, (batch[:size],), profile, stages=1, hosts=1, devices_per_host=1, **given)
        most = 0.02 if size == 32 else 0.05  # what is of one size in all has one time
        assert abs(alone.step_seconds / measured - 1) < most, (size, alone.step_seconds, measured)


def slowly(weight_pass):
    """Second halves of backward passes that take much longer than whole ones."""

    def run(self, k):
        time.sleep(0.1)
        weight_pass(self, k)

    return run


def late(src, axis, before, after):
    """A collective that takes long where it is measured between a model's operators, and nowhere else."""
    time.sleep(0.2)
    return redistributed(src, axis, before, after)


def probed(rank):
    """Four ranks, as two hosts of two."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    torch_case.join()
    before = {**plan_case.CLUSTER, "version": 2, "op_times": [
        {"op": "einsum", "flops": 1.0, "bytes": 1.0, "seconds": 9.0, "type": "float32"},
        {"op": "einsum", "flops": 1.0, "bytes": 1.0, "seconds": 9.0, "type": "float16"}]}  # fmt: skip
    given = copy.deepcopy(before)
    batch, target = torch.randn(32, 64), torch.randn(32, 64)
    common = {"loss": mean_square, "target": target, "micro_batches": 2}
    made = probe(before, max_bytes=1 << 14, seconds=1e-3, model=model(), example_args=(batch,), **common)
    assert before == given, "the profile that was given has changed"
    every = [None] * 4
    dist.all_gather_object(every, made)
    assert all(one == made for one in every), "ranks have different profiles"
    # Entries of the same kind and type are replaced, others stay.
    einsums = [entry for entry in made["op_times"] if entry["op"] == "einsum"]
    assert sum(entry["type"] == "float16" for entry in einsums) == 1 and len(einsums) > 3, einsums
    axes = {(c["hosts"], c["devices_per_host"], c["groups_per_host"]) for c in made["collectives"]}
    assert axes == {(1, 2, 1), (2, 1, 2), (2, 2, 1)} and len(made["collectives"]) == 12
    for collective in made["collectives"]:
        sizes, times = zip(*collective["curve"])
        assert list(sizes) == sorted(set(sizes)) and sizes[0] <= 1024 and sizes[-1] <= 1 << 14, sizes
        assert all(early < late for early, late in zip((0, *times), times)), times
    # The step that was measured is the one that the planner predicts.
    predicts(made, model(), batch, common)
    own = sum(4 * parameter.numel() for parameter in model().parameters())
    send = made["runtime"].pop("send_s")
    assert 0 <= send < 0.1, send
    split, share = made["runtime"].pop("split_factor"), made["runtime"].pop("weight_share")
    assert 1 <= split < 10 and 0 < share < 1, (split, share)
    assert made["runtime"] == {"bucket_bytes": own} and own < 1 << 20
    # For another model the operators' times are others.
    other = torch.nn.Sequential(model(), torch.nn.GELU(), model())
    with (
        unittest.mock.patch.object(StageModule, "weight_pass", slowly(StageModule.weight_pass)),
        unittest.mock.patch.object(_probe, "redistributed", late),
    ):
        again = probe(made, seconds=1e-3, model=other, example_args=(batch,), afresh=False, **common)
    split, larger = again["runtime"].pop("split_factor"), again["runtime"].pop("weight_share")
    assert split > 2 and larger > max(share, 0.6), (split, share, larger)
    assert again["runtime"] == {"bucket_bytes": 2 * own}
    # All collectives take what the one between its operators took longer.
    for before, after in zip(made["collectives"], again["collectives"]):
        more = {round(late[1] - early[1], 6) for early, late in zip(before["curve"], after["curve"])}
        assert len(more) == 1 and 0.1 < min(more) < 5, more
    # 16, 8 and 2 samples of a micro-batch, and beyond; other times are none of this model's.
    for found in (made, again):
        sizes = {entry["flops"] for entry in found["op_times"] if (entry["op"], entry["type"]) == ("einsum", "float32")}
        assert sizes == {2.0 * n * 64 * 256 for n in (16, 8, 2, 0.25)}, sizes
    kept = [[e["flops"] for e in found["op_times"] if e["op"] in ("softmax", "update")] for found in (made, again)]
    assert kept[0] == kept[1] and len(kept[0]) >= 2, kept  # a busy machine stops at a smaller size
    predicts(again, other, batch, common)
    # Collectives count as measured: where they take an hour, so does a plan that has them.
    slow = {**copy.deepcopy(made), "gradient_overlap": 0.0}
    for collective in slow["collectives"]:
        collective["curve"] = [[size, 3600 + seconds] for size, seconds in collective["curve"]]
    here = plan(model(), (batch,), slow, stages=1, hosts=1, devices_per_host=2, data_parallel=2, tensor_parallel=1, **common)
    assert here.step_seconds > 3600, here.step_seconds
    torch_case.leave()


def uneven(rank):
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    torch_case.join()
    try:
        probe(plan_case.CLUSTER)
        raise AssertionError("three ranks are not two on each host")
    except ValueError as error:
        assert str(error) == "3 ranks are not 2 on each host", error
    # Each time another rank is slow: so is every step, though on no rank most of them.
    def in_turn(calls):
        return lambda: time.sleep(0.1 * (next(calls) % 3 == rank))

    steps, updates = _probe._step_samples(*map(in_turn, (itertools.count(), itertools.count(1))), 1e-3, torch.device("cpu"))
    assert len(steps) == len(updates) == 3 and 0.1 <= min(steps + updates), (steps, updates)
    dist.barrier()  # a rank that leaves at once is missed by those that still connect
    torch_case.leave()


class Probe(unittest.TestCase):
    def test_two_hosts_of_two(self):
        ranks.run(4, probed, timeout=ranks.TIMEOUT)

    def test_uneven_hosts(self):
        ranks.run(3, uneven, timeout=ranks.TIMEOUT)


if __name__ == "__main__":
    unittest.main()
