# SPDX-License-Identifier: Apache-2.0
"""What is used wrongly is told in a sentence; it never trains something else."""

import functools
import json
import os
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch

import plan_case
import ranks
import test_schedules
import torch_case
import training_case
from crossmesh import errors
from crossmesh.torch import apply, load_plan

BATCH = test_schedules.BATCH
planned = functools.partial(test_schedules.planned, devices_per_host=2, stages=2)


def refused(call, text):
    try:
        call()
    except errors.InputError as error:
        assert text in str(error), (text, str(error))
        return
    raise AssertionError(f"not refused: {text}")


def no_grad(call):
    with torch.no_grad():
        return call()


def used_wrongly(rank, made, others):
    torch_case.join()
    make = test_schedules.make
    small, unlike = others
    for call, text in (
        (lambda: apply(make(), small), "the plan is for 1 devices, and the job has 2 ranks"),
        (lambda: apply(make(), (made, unlike)[rank]), "all need the same"),
        (lambda: apply(plan_case.make_model(blocks=4, width=16), made), "and the model one of shape (48, 16)"),
        (lambda: apply(torch.nn.Linear(2, 2), made), "and the model no such parameter"),
        (lambda: apply(make().bfloat16(), made), "is planned as torch.float32, and the model has it as torch.bfloat16"),
        (lambda: apply(make().eval(), made), "in training mode, and the model is in evaluation mode"),
    ):
        refused(call, text)
    applied = apply(make(), made)
    ids, target = next(plan_case.batches(1, BATCH))
    for call, text in (
        (lambda: applied.step(ids), "1 tensors for a step of Transformer, which takes 2"),
        (lambda: applied.step(ids[:8], target[:8]), "a batch of 8 samples; the plan is for 16"),
        (lambda: applied.step(ids[:, :4], target), "micro-batches of torch.int64 (2, 4); the plan is for torch.int64 (2, 8)"),
        (lambda: applied.step(ids, target.int()), "micro-batches of torch.int32"),
        (lambda: no_grad(lambda: applied.step(ids, target)), "step() under torch.no_grad() would find no gradients"),
    ):
        refused(call, text)
    assert all(parameter.grad is None for parameter in applied.parameters())
    applied.step(ids, target)
    refused(lambda: torch.nn.utils.clip_grad_norm_(applied.parameters(), 1.0), "applied.clip_grad_norm_()")
    lone = torch.nn.Parameter(torch.ones(4))
    lone.grad = torch.ones(4)
    assert torch.nn.utils.clip_grad_norm_([lone], 1.0).item() == 2.0  # what is not ours is left to torch
    applied.close()
    refused(lambda: applied.step(ids, target), "was closed: apply() it again")
    fails_alone(rank, apply(make(), made), ids, target)
    torch_case.leave()


def fails_alone(rank, applied, ids, target):
    """What fails on one rank in the middle of a step: the other hears of it when that closes, and goes on."""

    def fails(*_):
        raise ValueError("only here")

    if rank == 0:
        applied.stages[0].forward_pass = fails
    began = time.monotonic()
    try:
        applied.step(ids, target)
        raise AssertionError("a step without its first stage")
    except ValueError as error:
        assert rank == 0 and str(error) == "only here", error
    except errors.CrossmeshError as error:
        assert rank == 1, error
        assert "rank 0" in str(error), error
    finally:
        applied.close()
    assert time.monotonic() - began < float(os.environ["XM_TIMEOUT"]) / 2


class WrongUse(unittest.TestCase):
    def test_of_plans(self):
        for schedule, options, text in (
            ("chimera", {}, "schedule 'chimera'; plans of PyTorch models have 1f1b, gpipe"),
            ("pipedream-2bw", {}, "schedule 'pipedream-2bw'"),
            ("zb-v", {"data_parallel": None, "tensor_parallel": None}, "needs stages of equal meshes"),
            ("1f1b", {"virtual_stages": 2}, "only interleaved, zb-v, dualpipev have several stages"),
            ("dualpipev", {"micro_batches": 2, "stages": 4, "tensor_parallel": 1}, "at least two micro-batches to each of the 2 devices, not 2"),
            ("interleaved", {"micro_batches": 1, "stages": 4, "tensor_parallel": 1}, "micro-batches in multiples of the 2 devices, not 1"),
            ("interleaved", {"stages": 3, "tensor_parallel": 1}, "3 stages do not fold|3 stages of 1 x 1 devices are 3"),
            ("1f1b", {"recompute": "some"}, "recompute='some'"),
            ("1f1b", {"zero": 2}, "zero=2"),
        ):
            with self.assertRaisesRegex(errors.CrossmeshError, text):
                planned(schedule, **options)

    def test_of_files(self):
        made = planned("1f1b")
        ids, target = next(plan_case.batches(1, BATCH))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            made.save(path)
            load = functools.partial(load_plan, path, loss=plan_case.loss_of)
            again = load(test_schedules.make(), [ids], target=target)
            self.assertEqual((again.digest, str(again), again.order), (made.digest, str(made), made.order))
            for call, text in (
                (lambda: load(test_schedules.make(), [ids[:8]], target=target[:8]), "is for arguments"),
                (lambda: load(test_schedules.make().eval(), [ids], target=target), "in training mode"),
                (lambda: load(plan_case.make_model(blocks=3), [ids], target=target), "is for another model"),
            ):
                with self.assertRaisesRegex(errors.InputError, text):
                    call()
            with open(path, encoding="utf-8") as file:
                read = json.load(file)
            read["passes"][0] = read["passes"][0].replace("0F0,0F1", "0F1,0F0")
            for text, written in (("its digest does not match", json.dumps(read)), ("is no plan", "{"), ("is no plan", "[]")):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(written)
                with self.assertRaisesRegex(errors.InputError, text):
                    load(test_schedules.make(), [ids], target=target)

    def test_of_models_laid_out(self):
        torch.set_num_threads(1)
        others = planned("1f1b", devices_per_host=1, stages=1), planned("gpipe")
        ranks.run(2, used_wrongly, planned("1f1b"), others, timeout=3 * ranks.TIMEOUT)


if __name__ == "__main__":
    sys.exit(unittest.main())
