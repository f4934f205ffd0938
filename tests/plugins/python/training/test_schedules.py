# SPDX-License-Identifier: Apache-2.0
"""Every schedule of the planner that devices can run, as data for one executor: the orders, and training under them."""

import functools
import itertools
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch

import plan_case
import ranks
import torch_case
import training_case
from crossmesh import errors
from crossmesh.torch import apply, plan
from crossmesh.torch._plan import SCHEDULES
from crossmesh.torch._schedule import as_csv, in_flight, read_order

STEPS, BATCH, MICRO_BATCHES = 3, 16, 8
FOLDED = ("interleaved", "zb-v", "dualpipev")
make = functools.partial(plan_case.make_model, blocks=4)


def planned(schedule, model=make, **options):
    """Four stages on four devices of one rank, or on two of two ranks."""
    ids, target = next(plan_case.batches(1, BATCH))
    mesh = (1, 2) if schedule in FOLDED else (1, 1)
    options = {"stages": 4, "data_parallel": mesh[0], "tensor_parallel": mesh[1], "micro_batches": MICRO_BATCHES, **options}
    return plan(model(), [ids], training_case.CLUSTER, loss=plan_case.loss_of, target=target, schedule=schedule, **options)


class Products(torch.nn.Module):
    """Of every kind that a backward pass takes in halves, and one whose parameters are both its operands."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(9)
        wide, words, length = plan_case.WIDTH, plan_case.VOCABULARY, plan_case.LENGTH

        def weight(*shape, **options):
            return torch.nn.Parameter(torch.randn(*shape, **options) / wide**0.5)

        self.tokens = torch.nn.Embedding(words, wide)
        self.before, self.frozen, self.after = (torch.nn.Linear(wide, wide) for _ in range(3))
        self.frozen.weight.requires_grad_(False)
        self.turned, self.longer = weight(wide, wide), weight(wide, wide, dtype=torch.float64)
        self.places, self.experts = weight(length, length), weight(2, wide, wide)
        self.left, self.right = weight(wide, 8), weight(8, words)

    def forward(self, ids):
        x = torch.nn.functional.gelu(self.frozen(self.before(self.tokens(ids))))
        x = x + torch.tanh(x @ self.turned.t()) + torch.tanh(self.after(x) @ self.longer.float())
        x = x + torch.tanh(self.places @ x) + torch.einsum("bld,edf->blf", torch.tanh(x), self.experts)
        return x @ (self.left @ self.right)


class Orders(unittest.TestCase):
    def test_what_schedules_are(self):
        """Each stage does each micro-batch once, on one device; how many it holds is published (schedule.h)."""
        held = {
            "gpipe": [8, 8, 8, 8], "1f1b": [4, 3, 2, 1], "eager-1f1b": [7, 5, 3, 1], "eager-1f1b-w": [7, 5, 3, 1],
            "zb-h1": [4, 4, 4, 4], "zb-h2": [7, 7, 7, 7],
        }  # fmt: skip
        for schedule in SCHEDULES:
            made = planned(schedule)
            self.assertEqual(made.schedule, schedule)
            self.assertEqual(read_order(as_csv(made.order).splitlines(), 4, MICRO_BATCHES), made.order)
            if schedule in FOLDED:
                self.assertEqual(made.devices, [[0, 2], [1, 3]] if schedule == "interleaved" else [[0, 3], [1, 2]])
                self.assertEqual([stage.ranks for stage in made.stages[:2]], [(0, 1), (2, 3)])
                self.assertEqual({stage.ranks for stage in made.stages}, {(0, 1), (2, 3)})
            else:
                self.assertEqual([in_flight(passes, n) for n, passes in enumerate(made.order)], held[schedule])
            self.assertLess(0, made.step_seconds)

    def test_broken_orders_are_refused(self):
        good = ["0F0,0B0", "1F0,1B0"]
        read_order(good, 2, 1)
        for lines, text in (
            (["0F0,0X0", "1F0,1B0"], "no list of passes"),
            (["0B0,0F0", "1F0,1B0"], "stops at pass 0B0 of device 0"),
            (["0F0,0B0", "1B0,1F0"], "stops at pass"),
            (["0F0,0B0", "1F0"], "stops at pass 0B0"),
            (["0F0,0I0", "1F0,1B0"], "does not do stage 0 of micro-batch 0 once"),
            (["0F0,0F0,0B0", "1F0,1B0"], "stops at pass 0F0"),
            (["0F0,0B0,0F1", "1F0,1B0"], "beyond its 2 stages and 1 micro-batches"),
        ):
            with self.assertRaisesRegex(errors.InputError, text):
                read_order(lines, 2, 1)


def gradients(rank, made, batch, expected):
    torch_case.join()
    applied = apply(Products(), made)
    applied.step(*batch)
    for name, p in applied.named_parameters():
        if name in expected:
            torch.testing.assert_close(p.grad.full_tensor(), expected[name], rtol=1e-4, atol=1e-6)
        else:
            assert p.grad is None, name
    applied.close()
    torch_case.leave()


class Training(unittest.TestCase):
    def check(self, schedules, model=make, **options):
        torch.set_num_threads(1)
        batches = list(plan_case.batches(STEPS, BATCH))
        expected = training_case.alone(model, plan_case.loss_of, batches)
        cases = [(planned(name, model, **options), model, batches, expected, {}) for name in schedules]
        ranks.run(4, training_case.several, cases, timeout=3 * ranks.TIMEOUT)

    def test_one_stage_to_a_device(self):
        self.check([name for name in SCHEDULES if name not in FOLDED])

    def test_several_stages_to_a_device(self):
        self.check(FOLDED)

    def test_tied_weights(self):
        """In stages of two devices, and in two of one."""
        tied = functools.partial(plan_case.make_model, blocks=4, tied=True)
        self.check(["zb-h1", "interleaved", "zb-v"], tied)

    def test_gradients_of_products(self):
        torch.set_num_threads(1)
        batch = next(iter(plan_case.batches(1, BATCH)))
        model = Products()
        plan_case.loss_of(model(batch[0]), batch[1]).backward()
        expected = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
        for data, tensor in ((2, 1), (1, 2)):
            for schedule in ("1f1b", "zb-h1"):
                made = planned(schedule, Products, stages=2, data_parallel=data, tensor_parallel=tensor)
                ranks.run(4, gradients, made, batch, expected, timeout=ranks.TIMEOUT)

    def test_recomputation(self):
        self.check(["1f1b", "zb-h1", "zb-v"], recompute="on")


if __name__ == "__main__":
    sys.exit(unittest.main())
