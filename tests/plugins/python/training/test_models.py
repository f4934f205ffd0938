# SPDX-License-Identifier: Apache-2.0
"""Models of several kinds under several schedules: losses and gradient norms of one process, step by step."""

import dataclasses
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
from torch.distributed.tensor import Replicate, Shard

import models
import ranks
import torch_case
import training_case
from crossmesh import errors
from crossmesh.torch import apply, plan

STEPS, BATCH, MICRO_BATCHES = 2, 16, 8
# Four stages on four ranks, or two to a rank.
WIDE = ("1f1b", "eager-1f1b", "zb-h1")
NARROW = ("interleaved", "zb-v", "dualpipev")
LAYERS = {"t5": 12}


def mixed(rank, plans, make, given, expected):
    torch_case.join()
    for made in plans:
        applied = apply(make(), made)
        loss = applied.step(**given).item()
        torch.testing.assert_close(loss, expected[0], rtol=1e-3, atol=0)
        for name, parameter in applied.named_parameters():
            torch.testing.assert_close(parameter.grad.full_tensor(), expected[1][name], rtol=0.05, atol=2e-3, msg=name)
        try:
            applied.step(given["input_ids"], given["labels"])
            raise AssertionError("not refused")
        except errors.InputError as error:
            assert "keywords [] of a step of Mixed; the plan has ['input_ids', 'labels']" in str(error), error
        applied.close()
    torch_case.leave()


def going_twice(made):
    """The plan; what passes goes once more, from one layout into another: gradients of both come back, and count."""
    n, entry = next((n, e) for n, e in enumerate(made.boundaries) if e.dtype.is_floating_point and e.dst[1] == Replicate())
    again = dataclasses.replace(entry, dst=(entry.dst[0], Shard(len(entry.shape) - 1)))
    return dataclasses.replace(made, boundaries=(*made.boundaries[:n], again, *made.boundaries[n:]))


class Models(unittest.TestCase):
    def check(self, name, **options):
        torch.set_num_threads(1)
        make, loss, batches = models.MODELS[name]
        given = list(batches(STEPS, BATCH))
        # A mean of micro-batches, which a U-Net's and a token's losses are alike.
        expected = training_case.alone(make, loss, given, MICRO_BATCHES)

        def planned(schedule, devices, **how):
            how = {"data_parallel": 1, "tensor_parallel": 1, "stages": 4, **how}
            return plan(
                make(), given[0][:-1], training_case.CLUSTER, loss=loss, target=given[0][-1], micro_batches=MICRO_BATCHES,
                schedule=schedule, devices_per_host=devices, layers=LAYERS.get(name), **how,
            )  # fmt: skip

        for devices, schedules in ((4, WIDE), (2, NARROW)):
            plans = [planned(schedule, devices) for schedule in schedules]
            self.look(name, plans[0])
            if devices == 4:
                plans.append(planned("interleaved", 4, tensor_parallel=2))
                self.look_again(name, plans[-1])
                plans.append(going_twice(planned("1f1b", 4, tensor_parallel=2, stages=2)))
            cases = [(made, make, given, expected, {}) for made in plans]
            ranks.run(devices, training_case.several, cases, timeout=3 * ranks.TIMEOUT)

    def look(self, name, made):
        """That the plans have what the models are here for."""
        passing = [(entry.source, entry.target) for entry in made.boundaries]
        if name == "unet":
            self.assertTrue(any(target > source + 1 for source, target in passing), passing)
        if name == "t5":
            self.assertTrue(any(passing.count(pair) > 1 or pair[1] > pair[0] + 1 for pair in passing), passing)
        if name == "llama":
            self.assertEqual(made.homes["tokens.weight"], [0, 3])

    def look_again(self, name, made):
        """That what two stages want lies otherwise for each of them."""
        if name == "unet":
            passing = {(entry.source, entry.tensor, entry.src) for entry in made.boundaries}
            self.assertLess(len({entry[:2] for entry in passing}), len(passing), passing)

    def test_mixed_precision(self):
        """Autocast as the model has it; keywords, and a dictionary with the loss; batch norm. Parts are rounded as the whole
        is, where stages are cut and tensors are not."""
        torch.set_num_threads(1)
        ids, target = next(models.token_batches(1, BATCH))

        def make():
            torch.manual_seed(7)
            return models.Mixed()

        model = make()
        parts = zip(ids.chunk(MICRO_BATCHES), target.chunk(MICRO_BATCHES))
        losses = [model(input_ids=part, labels=wanted)["loss"] for part, wanted in parts]
        (sum(losses) / MICRO_BATCHES).backward()
        grads = {name: parameter.grad for name, parameter in model.named_parameters()}
        given = {"input_ids": ids, "labels": target}
        plans = [
            plan(make(), given, training_case.CLUSTER, micro_batches=MICRO_BATCHES, stages=2, devices_per_host=2, schedule=name)
            for name in ("1f1b", "zb-h1")
        ]
        self.assertIn(torch.bfloat16, {entry.dtype for entry in plans[0].program.operators})
        ranks.run(2, mixed, plans, make, given, (sum(losses).item() / MICRO_BATCHES, grads), timeout=3 * ranks.TIMEOUT)

    def test_llama(self):
        self.check("llama")

    def test_moe(self):
        self.check("moe")

    def test_t5(self):
        self.check("t5")

    def test_unet(self):
        self.check("unet")


if __name__ == "__main__":
    sys.exit(unittest.main())
