# SPDX-License-Identifier: Apache-2.0
"""Models of several kinds under several schedules: losses and gradient norms of one process, step by step."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch

import models
import ranks
import training_case
from crossmesh.torch import plan

STEPS, BATCH, MICRO_BATCHES = 2, 16, 8
# Four stages on four ranks, or two to a rank.
WIDE = ("1f1b", "eager-1f1b", "zb-h1")
NARROW = ("interleaved", "zb-v", "dualpipev")
LAYERS = {"t5": 12}


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
                plans.append(planned("1f1b", 4, stages=2, tensor_parallel=2))
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
