# SPDX-License-Identifier: Apache-2.0
"""What a step of apply() sends: as few collectives as the planner counts. Counted by torch, expected by hand."""

import unittest

import torch
from torch.distributed.tensor import Replicate

import ranks
import torch_case
import training_case
from crossmesh.torch import apply, plan

MICRO_BATCHES, WIDTH = 2, 32
CLUSTER = {**training_case.CLUSTER, "devices_per_host": 2}


class Three(torch.nn.Module):
    """Three readers of one tensor, as attention has them."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.parts = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 4 * WIDTH) for _ in range(3))
        self.last = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = torch.tanh(self.first(x))
        a, b, c = (part(y) for part in self.parts)
        return self.last(a * b + c)


def loss(output, target):
    return (output - target).square().mean()


def counted(rank):
    torch_case.join()
    torch.manual_seed(2)
    batch, target = torch.randn(2, 8, 4, WIDTH)
    alone = Three()
    parts = zip(batch.chunk(MICRO_BATCHES), target.chunk(MICRO_BATCHES))
    sum(loss(alone(x), y) / MICRO_BATCHES for x, y in parts).backward()
    for name, mesh in {"tensor": (1, 2), "data": (2, 1)}.items():
        model = Three()
        model.load_state_dict(alone.state_dict())
        made = plan(model, (batch,), CLUSTER, loss=loss, target=target, micro_batches=MICRO_BATCHES, stages=1,
                    data_parallel=mesh[0], tensor_parallel=mesh[1])  # fmt: skip
        applied = apply(model, made)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            applied.step(batch, target)
        found = [event.name for event in seen.events() if event.name.startswith("gloo:")]
        cut = [n for n, p in applied.named_parameters() if any(place.is_shard() for place in p.placements)]
        if name == "tensor":
            assert "parts.0.weight" in cut and "last.weight" in cut, cut
            # A micro-batch's result of `last`, and the gradient of what the three have read; the loss, once.
            assert found.count("gloo:all_reduce") == 2 * MICRO_BATCHES + 1, found
        else:
            # The gradients of all ten parameters and the loss of all micro-batches together.
            assert not cut and found.count("gloo:all_reduce") == 1, (cut, found)
        for key, parameter in applied.named_parameters():
            whole = parameter.grad.full_tensor()
            torch.testing.assert_close(whole, dict(alone.named_parameters())[key].grad, rtol=1e-4, atol=1e-6)
        applied.close()
    torch_case.leave()


class Thrice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(torch.nn.functional.linear(x, self.table))
        return x


def moved_once(rank):
    """A parameter that is kept otherwise than its readers want it: their gradients move back together, once a step."""
    torch_case.join()
    torch.manual_seed(2)
    model = Thrice()
    batch, target = torch.randn(2, 8, 4, WIDTH)
    parts = zip(batch.chunk(MICRO_BATCHES), target.chunk(MICRO_BATCHES))
    (wanted,) = torch.autograd.grad(sum(loss(model(x), y) / MICRO_BATCHES for x, y in parts), [model.table])
    made = plan(model, (batch,), CLUSTER, loss=loss, target=target, micro_batches=MICRO_BATCHES, stages=1, data_parallel=1,
                tensor_parallel=2)  # fmt: skip
    counts = []
    for kept in (made.stages[0].parameters["table"], (Replicate(), Replicate())):
        made.stages[0].parameters["table"] = kept
        applied = apply(model, made)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            applied.step(batch, target)
        counts.append(sum(event.name.startswith("gloo:") for event in seen.events()))
        (parameter,) = applied.parameters()
        torch.testing.assert_close(parameter.grad.full_tensor(), wanted, rtol=1e-4, atol=1e-6)
        applied.close()
    assert counts[1] == counts[0] + 1, counts
    torch_case.leave()


def mean(output, target):
    """Of what is asked for, and a little for large outputs: a number of the labels, and a sum of sums."""
    flat = output.flatten(0, 1)
    return torch.nn.functional.cross_entropy(flat, target.flatten()) + 0.001 * flat.logsumexp(-1).square().mean()


def shifted(output, target):
    """Not linear: a part of the sum, shifted, is no part of the sum."""
    return mean(output, target) + 3.0


def losses(rank):
    """Ranks add up their parts of a loss with the gradients, where that is the same as in each pass."""
    torch_case.join()
    torch.manual_seed(2)
    batch, target = torch.randn(8, 4, WIDTH), torch.randint(0, WIDTH, (8, 4))
    target[1, :3] = -100  # cross entropy's mark for what does not count: micro-batches count differently
    for loss, sums in ((mean, 0), (shifted, 2 * MICRO_BATCHES)):
        model = Three()
        parts = zip(batch.chunk(MICRO_BATCHES), target.chunk(MICRO_BATCHES))
        wanted = sum(loss(model(x), y) / MICRO_BATCHES for x, y in parts)
        grads = torch.autograd.grad(wanted, list(model.parameters()))
        made = plan(model, (batch,), CLUSTER, loss=loss, target=target, micro_batches=MICRO_BATCHES, stages=1,
                    data_parallel=2, tensor_parallel=1)  # fmt: skip
        applied = apply(model, made)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            found = applied.step(batch, target)
        names = [event.name for event in seen.events() if event.name.startswith("gloo:")]
        assert names.count("gloo:all_reduce") == sums + 1, (loss, names)  # and the gradients
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-5, atol=0)
        torch.testing.assert_close(applied.evaluate(batch, target), wanted.detach(), rtol=1e-5, atol=0)
        for parameter, grad in zip(applied.parameters(), grads):
            torch.testing.assert_close(parameter.grad.full_tensor(), grad, rtol=1e-4, atol=1e-6)
        applied.close()
    torch_case.leave()


def steps(rank):
    """Gradients of a step may be kept, and added to, while the next finds its own; where nobody has them any more their
    memory is used again."""
    torch_case.join()
    torch.manual_seed(2)
    model = Three()
    batches = torch.randn(4, 2, 8, 4, WIDTH)
    wanted = []
    for batch, target in batches:
        parts = zip(batch.chunk(MICRO_BATCHES), target.chunk(MICRO_BATCHES))
        whole = sum(loss(model(x), y) / MICRO_BATCHES for x, y in parts)
        wanted.append(torch.autograd.grad(whole, list(model.parameters())))
    made = plan(model, (batches[0, 0],), CLUSTER, loss=loss, target=batches[0, 1], micro_batches=MICRO_BATCHES, stages=1,
                data_parallel=2, tensor_parallel=1)  # fmt: skip
    applied = apply(model, made)
    parameters = list(applied.parameters())

    def begun(n):
        applied.step(*batches[n])
        return [parameter.grad.to_local() for parameter in parameters]

    def forgotten():
        for parameter in parameters:
            parameter.grad = None

    kept = begun(0)
    forgotten()
    begun(1)
    torch.testing.assert_close(kept, list(wanted[0]), rtol=1e-4, atol=1e-6)  # not those of the step after
    begun(2)
    for parameter, *some in zip(parameters, wanted[1], wanted[2]):
        torch.testing.assert_close(parameter.grad.to_local(), sum(some), rtol=1e-4, atol=1e-6)
    places = []
    del kept
    for _ in range(3):
        forgotten()
        found = begun(3)
        torch.testing.assert_close(found, list(wanted[3]), rtol=1e-4, atol=1e-6)
        places.append(found[0].data_ptr())
        del found
    assert places[1] == places[2], places
    applied.close()
    torch_case.leave()


class Collectives(unittest.TestCase):
    def test_losses(self):
        ranks.run(2, losses, timeout=ranks.TIMEOUT)

    def test_parameters_move_once(self):
        ranks.run(2, moved_once, timeout=ranks.TIMEOUT)

    def test_gradients_of_several_steps(self):
        ranks.run(2, steps, timeout=ranks.TIMEOUT)

    def test_counts(self):
        ranks.run(2, counted, timeout=ranks.TIMEOUT)


if __name__ == "__main__":
    unittest.main()
