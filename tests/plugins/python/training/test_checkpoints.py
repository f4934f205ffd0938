# SPDX-License-Identifier: Apache-2.0
"""Training that is saved under one plan and goes on under another, and optimizers whose state is cut."""

import functools
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
import torch.distributed.checkpoint as checkpoint

import plan_case
import ranks
import test_schedules
import torch_case
import training_case
from crossmesh import errors
from crossmesh.torch import _optimizer, apply, load_plan

STEPS, BATCH = 4, test_schedules.BATCH
tied = functools.partial(plan_case.make_model, blocks=4, tied=True)


def some_steps(applied, optimizer, batches):
    seen = []
    for ids, target in batches:
        optimizer.zero_grad()
        seen.append(applied.step(ids, target).item())
        applied.clip_grad_norm_(training_case.MAX_NORM)
        optimizer.step()
    return seen


def moved(rank, plans, expected, folder):
    """A step under each plan; what is between is on disk."""
    torch_case.join()
    batches = list(plan_case.batches(STEPS, BATCH))
    for number, made in enumerate(plans):
        torch.manual_seed(number)
        applied = apply(tied(), made)
        optimizer = applied.optimizer(torch.optim.AdamW, lr=3e-3)
        path = os.path.join(folder, str(number))
        if number:
            with torch.no_grad():
                for parameter in applied.parameters():
                    parameter.zero_()
            state = {"model": applied.state_dict(), "optimizer": optimizer.state_dict()}
            checkpoint.load(state, checkpoint_id=os.path.join(folder, str(number - 1)))
            applied.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        seen = some_steps(applied, optimizer, batches[number : number + 1])
        torch.testing.assert_close(seen, expected[0][number : number + 1], rtol=1e-4, atol=0)
        checkpoint.save({"model": applied.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=path)
        try:
            optimizer.load_state_dict({})
            raise AssertionError("not refused")
        except errors.InputError as error:
            assert "the state has no" in str(error), error
        applied.close()
    torch_case.leave()


def cut(rank, made, expected):
    """Moments take a share of what the parameters take; what is trained is the same."""
    torch_case.join()
    applied = apply(tied(), made)
    optimizer = applied.optimizer(torch.optim.AdamW, lr=3e-3)
    seen = some_steps(applied, optimizer, plan_case.batches(STEPS, BATCH))
    torch.testing.assert_close(seen, expected[0], rtol=1e-4, atol=0)
    kept = sum(state["exp_avg"].numel() for state in optimizer.inner.state.values())
    parts = sum(parameter.to_local().numel() for parameter in applied.parameters())
    assert kept <= parts / 2 + len(optimizer.inner.state), (kept, parts)
    for name, parameter in applied.named_parameters():
        torch.testing.assert_close(parameter.full_tensor().detach(), expected[2][name], rtol=1e-3, atol=1e-4)
    applied.close()
    torch_case.leave()


def together(rank, made):
    """Parameters that lie together are updated in pieces, to the last bit as if each were alone: also where one has no
    gradient, and where gradients are not those of the step."""
    torch_case.join()
    _optimizer.PIECE = 1000  # so that parameters begin and end within pieces
    applied = apply(tied(), made)
    optimizer = applied.optimizer(torch.optim.AdamW, lr=3e-3)
    own = dict(applied.named_parameters())
    pieces = len(optimizer.inner.param_groups[0]["params"])
    assert pieces > len(own)
    alone = {name: torch.nn.Parameter(parameter.detach().to_local().clone()) for name, parameter in own.items()}
    reference = torch.optim.AdamW(alone.values(), lr=3e-3, foreach=False)

    def equal(whole):
        state = optimizer.state_dict()
        for name, parameter in own.items():
            assert torch.equal(parameter.detach().to_local(), alone[name]), name
            for key, value in reference.state[alone[name]].items():
                found = state[f"{name}:{key}"]
                assert torch.equal(found.to_local() if value.dim() else found, value), (name, key)
        assert (len(optimizer.inner.param_groups[0]["params"]) == pieces) == whole

    for number, (ids, target) in enumerate(plan_case.batches(5, BATCH)):
        optimizer.zero_grad()
        applied.step(ids, target)
        if number == 1:
            for parameter in own.values():
                parameter.grad = parameter.grad * 2
        if number == 3:
            next(iter(own.values())).grad = None
        for name, parameter in own.items():
            alone[name].grad = None if parameter.grad is None else parameter.grad.to_local().clone()
        optimizer.step()
        reference.step()
        equal(number < 3)
        if number == 2:
            kept = {name: value.clone() for name, value in optimizer.state_dict().items()}
            optimizer.load_state_dict({name: value + 1 for name, value in kept.items()})
            optimizer.load_state_dict(kept)
            equal(True)
    applied.close()
    torch_case.leave()


def from_file(rank, path, expected):
    """Without the planner, whose library is never opened."""
    torch_case.join()
    ids, target = next(plan_case.batches(1, BATCH))
    made = load_plan(path, tied(), [ids], loss=plan_case.loss_of, target=target)
    training_case.train(made, tied, [(ids, target)], expected).close()
    if os.environ.get("NO_PLANNER"):
        with open("/proc/self/maps", encoding="utf-8") as maps:
            assert "libautopar" not in maps.read()
    torch_case.leave()


class Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.expected = training_case.alone(tied, plan_case.loss_of, list(plan_case.batches(STEPS, BATCH)))

    def test_from_plan_to_plan(self):
        plans = [
            test_schedules.planned("1f1b", tied),
            test_schedules.planned("zb-v", tied),
            test_schedules.planned("gpipe", tied, stages=2, data_parallel=2, tensor_parallel=1, zero=1),
            test_schedules.planned("interleaved", tied, data_parallel=2, tensor_parallel=1, zero=1),
        ]
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(4, moved, plans, self.expected, folder, timeout=3 * ranks.TIMEOUT)

    def test_cut_state(self):
        made = test_schedules.planned("1f1b", tied, stages=2, data_parallel=2, tensor_parallel=1, zero=1)
        whole = test_schedules.planned("1f1b", tied, stages=2, data_parallel=2, tensor_parallel=1)
        self.assertLess(made.memory, whole.memory)
        ranks.run(4, cut, made, self.expected, timeout=3 * ranks.TIMEOUT)

    def test_updated_together(self):
        ranks.run(4, together, test_schedules.planned("1f1b", tied, stages=2, data_parallel=2, tensor_parallel=1),
                  timeout=3 * ranks.TIMEOUT)  # fmt: skip

    def test_a_file_without_the_planner(self):
        """Planned in a process of its own, so that this one has nothing of the planner to hand on."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    test_schedules.planned("zb-h1", tied).save(path)
                    status = 0
                finally:
                    os._exit(status)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            with open("/proc/self/maps", encoding="utf-8") as maps:
                os.environ["NO_PLANNER"] = "" if "libautopar" in maps.read() else "1"
            ranks.run(4, from_file, path, self.expected, timeout=3 * ranks.TIMEOUT)


if __name__ == "__main__":
    sys.exit(unittest.main())
