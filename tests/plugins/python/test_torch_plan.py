# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch, planned and run as planned."""

import collections
import contextlib
import functools
import itertools
import sys
import unittest
import warnings
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

import plan_case
import ranks
import torch_case
from crossmesh import errors
from crossmesh._stage_planner import Work, training_works
from crossmesh.torch import _redistribute, apply, plan
from crossmesh.torch._export import export_program
from crossmesh.torch._operators import Local

STEPS, BATCH, MICRO_BATCHES = 20, 16, 4


def export(model, *inputs, loss=None):
    return export_program(model, list(inputs), loss)


def parts_of(operator, operands, letter, count):
    """What `count` ranks make of their parts when a factor is cut."""
    sizes = dict(operator.sizes)
    if count > 1:
        sizes[letter] //= count
    made = []
    for rank in range(count):
        given = []
        for operand, whole in zip(operator.operands, operands):
            for dim, letters in enumerate(operand.term):
                if letters[0] == letter:
                    extent = whole.shape[dim] // count
                    whole = whole.narrow(dim, rank * extent, extent)
            whole = whole if operand.cast is None else whole.to(operand.cast)
            given.append(whole if operand.order is None else whole.permute(operand.order))
        made.append(operator.run(given, Local(sizes)))
    return made


def put_together(operator, parts, letter):
    for dim, letters in enumerate(operator.result):
        if letters[0] == letter:
            return torch.cat(parts, dim)
    return sum(parts)


def may_be_cut(operator, letter):
    """By the planner's rules: it divides, and is the first factor of every dimension that it is in."""
    terms = [letters for term in (*(o.term for o in operator.operands), operator.result) for letters in term]
    return (
        letter not in operator.whole
        and operator.sizes[letter] % 2 == 0
        and all(letters[0] == letter for letters in terms if letter in letters)
    )


class Zoo(nn.Module):
    """Most of what is handled, in one module."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 8, padding_idx=2)
        self.norm, self.rms = nn.LayerNorm(8), nn.RMSNorm(8)
        self.joint = nn.Linear(8, 24)
        self.grouped = nn.Linear(8, 4)
        self.matrix = nn.Parameter(torch.randn(8, 8))
        self.image, self.groups = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.register_buffer("mask", torch.ones(4, 4).tril() == 0)

    def forward(self, ids, x):
        y = self.norm(x) + self.rms(self.table(ids))
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.joint(y).chunk(3, dim=-1))
        scores = (q @ k.transpose(-1, -2) / 2).masked_fill(self.mask, float("-inf"))
        y = y + (scores.softmax(-1) @ v).permute(0, 2, 1, 3).flatten(2)
        few = self.grouped(y).view(2, 4, 1, 4).permute(0, 2, 1, 3)
        y = y + functional.scaled_dot_product_attention(q, few, few, enable_gqa=True).transpose(1, 2).reshape(2, 4, 8)
        wide = functional.scaled_dot_product_attention(q, few.repeat_interleave(2, 1), v, attn_mask=~self.mask)
        y = y + wide.transpose(1, 2).reshape(2, 4, 8)
        y = torch.addmm(self.matrix[0], y.reshape(-1, 8), self.matrix.t()).reshape(2, 4, 8)
        y = torch.cat([y[..., 4:], y[..., :4].expand(2, 4, 4)], -1) * torch.sigmoid(y.mean(-1, keepdim=True))
        y = y + (y.bfloat16() @ self.matrix.bfloat16()).float()
        values, places = y.topk(3, -1)
        y = y + torch.zeros_like(y).scatter(-1, places, values) + y.gather(-1, y.argmax(-1, keepdim=True)) + y.cumsum(1)
        y = y - y.logsumexp(-1, keepdim=True) + functional.one_hot(ids, 10).float()[..., :8] + y.flip(1).sort(-1)[0]
        image = functional.max_pool2d(functional.pad(self.image(y.unsqueeze(1)), (1, 1)), 2)
        y = y + functional.interpolate(self.groups(image), size=(4, 8)).sum(1)
        y = y + torch.einsum("bte,ef->btf", y, self.matrix) + torch.stack(list(y.unbind(1)), 1).unsqueeze(1).squeeze(1)
        return y.sum(1), y.log_softmax(-1)


def zoo_loss(outputs, target):
    summed, logs = outputs
    return functional.mse_loss(summed, torch.zeros(2, 8)) + functional.nll_loss(logs.flatten(0, 1), target.flatten())


def zoo_inputs():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(10, (2, 4), generator=generator)
    target = torch.randint(8, (2, 4), generator=generator)
    target[0, 0] = -100
    return ids, torch.randn(2, 4, 8, generator=generator), target


class Export(unittest.TestCase):
    def test_a_transformer_by_hand(self):
        model = plan_case.make_model()
        ids = torch.zeros(4, plan_case.LENGTH, dtype=torch.long)
        program = export(model, ids, ids, loss=plan_case.loss_of)
        self.assertEqual(list(program.parameters), [name for name, _ in model.named_parameters()])
        for name, parameter in model.named_parameters():
            self.assertEqual(program.parameters[name].shape, tuple(parameter.shape))
        tokens, width, length = 4 * plan_case.LENGTH, plan_case.WIDTH, plan_case.LENGTH
        block = 2 * tokens * width * (4 * width + 8 * width)
        by_hand = plan_case.BLOCKS * block + 2 * tokens * width * plan_case.VOCABULARY
        self.assertEqual(sum(o.flops for o in program.operators if o.kind == "einsum"), by_hand)
        attention = [o for o in program.operators if o.kind == "custom" and "attention" in o.name]
        self.assertEqual(sum(o.flops for o in attention), plan_case.BLOCKS * 4 * tokens * length * width)
        ops = {op["name"]: op for op in program.to_graph()["ops"]}
        self.assertEqual(ops["linear"]["rule"], "abc,dc->abd")
        self.assertEqual(ops["linear"]["label"], "blocks/0/query")
        self.assertEqual(ops["view"]["rule"], "ab(cd)->abcd")
        self.assertEqual(ops["cross_entropy_loss"]["whole"], "b")
        self.assertEqual(len([op for op in ops.values() if op["kind"] == "einsum"]), plan_case.BLOCKS * 6 + 1)

    def test_every_operator_on_parts_is_the_whole(self):
        """For every factor that the planner may cut: parts of operands give parts of the result, or of a sum."""
        torch.manual_seed(2)
        model, inputs = Zoo(), zoo_inputs()
        program = export(model, *inputs, loss=zoo_loss)
        values = dict(zip(program.arguments, inputs)) | {name: p.detach() for name, p in model.named_parameters()}
        values |= {name: number.of(values) for name, number in program.derived.items()}
        self.assertEqual(values["nll_loss_nd/count"].item(), 7)
        cuts = set()
        for operator in program.operators:
            operands = [o.data if o.kind == "constant" else values[o.name] for o in operator.operands]
            (whole,) = parts_of(operator, operands, "", 1)
            self.assertEqual((tuple(whole.shape), whole.dtype), (operator.shape, operator.dtype), operator.name)
            for letter in operator.sizes:
                if may_be_cut(operator, letter):
                    made = put_together(operator, parts_of(operator, operands, letter, 2), letter)
                    near = {"rtol": 0.05, "atol": 0.05} if whole.dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
                    torch.testing.assert_close(
                        made, whole, **near, msg=lambda text, o=operator, x=letter: f"{o.name}, {x}: {text}"
                    )
                    cuts.add((operator.name, letter))
            values[operator.name] = whole
        expected = zoo_loss(model(*inputs[:-1]), inputs[-1])
        torch.testing.assert_close(values[program.loss], expected.detach())
        self.assertGreater(len(cuts), 60)

    def test_modules_of_torch(self):
        """Those that models are made of; also with operators that work in place."""
        x = torch.randn(4, 8, 32, generator=torch.Generator().manual_seed(5))
        for model in (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2),
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0),
            nn.Sequential(nn.Linear(32, 64), nn.ReLU(inplace=True), nn.LayerNorm(64), nn.Dropout(0.1), nn.Linear(64, 32)),
        ):
            program = export(model, x, x, loss=functional.mse_loss)
            self.assertEqual(list(program.parameters), [name for name, _ in model.named_parameters()])
            values = {"inputs_0": x, "inputs_1": x} | {name: p.detach() for name, p in model.named_parameters()}
            for operator in program.operators:
                operands = [o.data if o.kind == "constant" else values[o.name] for o in operator.operands]
                values[operator.name] = parts_of(operator, operands, "", 1)[0]
            expected = functional.mse_loss(model(x), x)
            dropping = any("dropout" in o.name for o in program.operators)
            near = {"rtol": 0.3, "atol": 0.0} if dropping else {}
            torch.testing.assert_close(values[program.loss], expected.detach(), **near)

    def test_what_the_planner_prices(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.in_proj, self.scale = nn.Linear(8, 24), nn.Parameter(torch.ones(2))

            def forward(self, x):
                q, k, v = self.in_proj(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
                return functional.scaled_dot_product_attention(q * self.scale[:, None, None], k, v).exp().sum()

        program = export(Model(), torch.randn(2, 5, 8))
        works = training_works(program.to_graph())
        assert set(works) == {operator.name for operator in program.operators}
        found = {}
        for operator in program.operators:
            found.setdefault(operator.kind if not operator.view else "view", []).append(works[operator.name])
        elements, flops = 2 * 2 * 5 * 4, 2 * 2 * 2 * 2 * 5 * 5 * 4
        # Its input has no gradient.
        ((own, backward),) = found["einsum"]
        assert own == Work("einsum", "float32", 2 * 10 * 8 * 24, 4 * (10 * 8 + 24 * 8 + 10 * 24)) and backward == [own]
        # Query, key and value have one each, of the result's and all three.
        ((own, backward),) = found["custom"]
        assert own == Work("custom", "float32", flops, 4 * 4 * elements) and backward == [Work("gradient", "float32", flops, 4 * 5 * elements)] * 3
        # Both operands of a product; the bias is linear, and summed.
        product, exp = (works[o.name] for o in program.operators if o.kind == "elementwise" and not o.linear)
        assert [work.kind for work in product[1]] == ["gradient"] * 2 and exp[1] == [Work("gradient", "float32", 2 * elements, 4 * 3 * elements)]
        assert [work.kind for own, backward in found["elementwise"] for work in backward].count("reduce") == 1
        # Of a table at most all of it is read.
        tokens = torch.randint(4, (2, 5))
        table = export(nn.Embedding(4, 8), tokens, torch.randn(2, 5, 8), loss=functional.mse_loss)
        ((own, _),) = (work for work in training_works(table.to_graph()).values() if work[0].kind == "embedding")
        assert own.nbytes == 8 * 10 + 4 * 4 * 8 + 4 * 10 * 8, own
        # Views, and gradients of them, touch nothing.
        assert found["view"] and all(work.nbytes == 0 for own, backward in found["view"] for work in (own, *backward))

    def test_what_is_refused(self):
        ids = torch.zeros(2, 4, dtype=torch.long)
        x = torch.randn(2, 4)

        class Router(nn.Module):
            def forward(self, x):
                return torch.kthvalue(x, 2)[0]

        class Outer(nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.router, self.weight = inner, nn.Parameter(torch.ones(4))

            def forward(self, x):
                return self.router(x * self.weight).sum()

        class Branch(nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x

        class Fused(nn.Module):
            def forward(self, x):
                return torch.einsum("ij,ij->ij", x, x).cumprod(0)

        class Noise(nn.Module):
            def forward(self, x):
                return x + torch.randn(4)

        for model, given, texts in (
            (Outer(Noise()), [x], ("module 'router'", "aten.randn.default draws random numbers")),
            (Outer(Router()), [x], ("module 'router'", "aten.kthvalue")),
            (Outer(Fused()), [x], ("module 'router'", "aten.cumprod")),
            (Outer(nn.BatchNorm1d(4)), [x], ("'router.", "changed by the forward pass")),
            (Outer(Branch()), [x], ("torch.export cannot export Outer",)),
            (nn.Linear(4, 4), [x], ("(2, 4)", "needs a loss")),
            (Outer(nn.Identity()), [3.0], ("float", "not a tensor")),
        ):
            with self.assertRaises(errors.InputError) as caught:
                export(model, *given)
            for text in texts:
                self.assertIn(text, str(caught.exception))
        class Weighted(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(4))

            def forward(self, output, target):
                return ((output - target) * self.weight).sum()

        weighted = Weighted()
        with self.assertRaisesRegex(errors.InputError, "parameter of its own, 'loss.weight'"):
            export(nn.Linear(4, 4), x, x, loss=weighted)
        with self.assertRaisesRegex(errors.InputError, "loss and target"):
            plan(nn.Linear(4, 4), [x], plan_case.CLUSTER, target=ids)
        with self.assertRaisesRegex(errors.InputError, "2 samples does not divide into 3"):
            plan(nn.Linear(4, 4), [x], plan_case.CLUSTER, loss=functional.mse_loss, target=x, micro_batches=3)
        with self.assertRaisesRegex(errors.InputError, "schedule 'chimera'"):
            plan(nn.Linear(4, 4), [x], plan_case.CLUSTER, loss=functional.mse_loss, target=x, schedule="chimera")


def make_plan(tied=False, dropout=0.0, cluster=plan_case.CLUSTER, **options):
    ids, target = next(plan_case.batches(1, BATCH))
    options = {"loss": plan_case.loss_of, "target": target, "micro_batches": MICRO_BATCHES, **options}
    return plan(plan_case.make_model(tied=tied, dropout=dropout), [ids], cluster, **options)


class Plans(unittest.TestCase):
    def test_a_given_mesh(self):
        made = make_plan(stages=2, data_parallel=2, tensor_parallel=2)
        self.assertEqual([stage.ranks for stage in made.stages], [(0, 1, 2, 3), (4, 5, 6, 7)])
        self.assertEqual([stage.mesh for stage in made.stages], [(2, 2), (2, 2)])
        model = plan_case.make_model()
        self.assertEqual(set(made.parameters), {name for name, _ in model.named_parameters()})
        # Megatron's blocks: columns, rows.
        for name, shard in (("query.weight", 0), ("up.weight", 0), ("up.bias", 0), ("out.weight", 1), ("down.weight", 1)):
            for block in range(plan_case.BLOCKS):
                self.assertEqual(made.parameters[f"blocks.{block}.{name}"][1], (Replicate(), Shard(shard)), name)
        self.assertEqual(made.boundaries[0].shape, (BATCH // MICRO_BATCHES, plan_case.LENGTH, plan_case.WIDTH))
        self.assertEqual(made.boundaries[0].src[0], Shard(0))
        text = str(made)
        for expected in ("Transformer: 2 stages, 4 micro-batches of 4 samples, 1f1b", "ranks 0, 1, 2, 3 as 2 x 2",
                         "[Replicate(), Shard(1)]", "to stage 1: (4, 8, 32)"):  # fmt: skip
            self.assertIn(expected, text)
        self.assertEqual(make_plan(stages=2, data_parallel=2, tensor_parallel=2).digest, made.digest)

    def test_numbers_of_micro_batches(self):
        """One export and one search choose among them as plans of each number do, each from an export of its own size."""
        for options in ({}, {"stages": 2}, {"stages": 2, "data_parallel": 2, "tensor_parallel": 2}):
            steps = {count: make_plan(micro_batches=count, **options).step_seconds for count in (1, 2, 4)}
            best = min(steps, key=lambda count: steps[count])
            with mock.patch("crossmesh.torch._plan.export_program", wraps=export_program) as exporting:
                made = make_plan(micro_batches=(4, 1, 2), **options)
            self.assertEqual((made.micro_batches, made.step_seconds), (best, steps[best]))
            self.assertEqual(exporting.call_count, 1 if best == 1 else 2)
            self.assertLessEqual(make_plan(micro_batches=None, **options).step_seconds, 1.001 * steps[best])

    def test_samples_that_cannot_be_followed(self):
        class PerSample(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale, self.linear = nn.Parameter(torch.ones(8, 1)), nn.Linear(32, 32)

            def forward(self, x):
                return (self.linear(x) * self.scale).square().mean()

        x = torch.zeros(8, 32)
        self.assertEqual(plan(PerSample(), [x], plan_case.CLUSTER).micro_batches, 1)
        with self.assertRaisesRegex(errors.InputError, "weight 'scale', so their number cannot change"):
            plan(PerSample(), [x], plan_case.CLUSTER, micro_batches=(1, 2))

    def test_checkpointed_blocks_are_told(self):
        """They are planned as blocks without are, and that is said, once."""
        options = {"loss": plan_case.loss_of, "micro_batches": (1, 2), "stages": 2, "data_parallel": 4}
        ids, target = next(plan_case.batches(1, BATCH))
        model = plan_case.make_model()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plain = plan(model, [ids], plan_case.CLUSTER, target=target, **options)
        for block in model.blocks:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        with self.assertWarnsRegex(UserWarning, f"Transformer calls torch.utils.checkpoint {plan_case.BLOCKS} times") as caught:
            again = plan(model, [ids], plan_case.CLUSTER, target=target, **options)
        self.assertEqual(len(caught.warnings), 1)
        self.assertEqual([stage.memory for stage in again.stages], [stage.memory for stage in plain.stages])
        self.assertEqual(again.step_seconds, plain.step_seconds)

    def test_others(self):
        whole = make_plan(stages=1, data_parallel=8, micro_batches=2)
        self.assertEqual([stage.ranks for stage in whole.stages], [tuple(range(8))])
        self.assertTrue(all(p == (Replicate(), Replicate()) for _, p in whole.parameters.values()))
        free = make_plan(hosts=1, devices_per_host=2)
        self.assertEqual(sorted(rank for stage in free.stages for rank in stage.ranks), [0, 1])
        self.assertLess(0, free.step_seconds)
        with self.assertRaisesRegex(errors.InputError, "3 stages of 2 x 2 devices are 12 devices, and the cluster has 8"):
            make_plan(stages=3, data_parallel=2, tensor_parallel=2)
        with self.assertRaisesRegex(errors.InputError, "Transformer does not fit into 9.77 KiB"):
            make_plan(stages=1, memory_limit=1e4)
        # What comes behind a loss is in its stage.
        halved = make_plan(stages=2, loss=lambda logits, target: 0.5 * plan_case.loss_of(logits, target))
        self.assertEqual(len(halved.stages), 2)
        tied = make_plan(tied=True, stages=2)
        self.assertEqual(tied.homes["tokens.weight"], [0, 1])


def alone(**model):
    """One process: the losses, the gradients of the first step, and the parameters in the end."""
    model = plan_case.make_model(**model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, grads = [], {}
    for ids, target in plan_case.batches(STEPS, BATCH):
        optimizer.zero_grad()
        loss = plan_case.loss_of(model(ids), target)
        loss.backward()
        grads = grads or {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    return losses, grads, {name: p.detach() for name, p in model.named_parameters()}


def train(made, expected, steps, **model):
    """Some steps of a plan, compared with one process."""
    losses, grads, parameters = expected
    applied = apply(plan_case.make_model(**model), made)
    mine = made.stages[applied.stage_number].parameters
    assert set(mine) == {name for name, _ in applied.named_parameters()}
    optimizer = torch.optim.AdamW(applied.parameters(), lr=3e-3)
    seen = []
    for ids, target in itertools.islice(plan_case.batches(STEPS, BATCH), steps):
        optimizer.zero_grad()
        seen.append(applied.step(ids, target).item())
        for name, parameter in applied.named_parameters():
            assert isinstance(parameter, DTensor) and tuple(parameter.placements) == mine[name], name
            assert tuple(parameter.grad.placements) == mine[name], name
            if len(seen) == 1:
                torch.testing.assert_close(parameter.grad.full_tensor(), grads[name], rtol=1e-3, atol=1e-6, msg=name)
        optimizer.step()
    torch.testing.assert_close(seen, losses[:steps], rtol=1e-4, atol=0)
    for name, parameter in applied.named_parameters():
        # Softmax does not see the bias of keys: its gradient is noise, which Adam makes steps of.
        if steps == STEPS and not name.endswith("key.bias"):
            torch.testing.assert_close(parameter.full_tensor().detach(), parameters[name], rtol=1e-3, atol=1e-4, msg=name)
    return applied


def as_planned(rank, made, expected):
    torch_case.join()
    applied = train(made, expected, STEPS)
    ids, target = next(plan_case.batches(1, BATCH))
    before = applied.evaluate(ids, target).item()
    assert applied.step(ids, target).item() == before
    for inputs, text in (((ids,), "1 tensors for a step of Transformer, which takes 2"), ((ids[:8], target), "plan is for 16")):
        try:
            applied.step(*inputs)
            raise AssertionError(f"not refused: {text}")
        except errors.InputError as error:
            assert text in str(error), error
    applied.close()
    torch_case.leave()


def counted(rank, made, expected):
    """The collectives of sums are those of the plan: of parameters' gradients, which are small here, once a step and
    joined where the steps are the same, of the loss once, of other results in each micro-batch."""
    torch_case.join()
    found = collections.Counter()
    ids, target = next(plan_case.batches(1, BATCH))
    applied = apply(plan_case.make_model(), made)
    axes = [dist.get_process_group_ranks(applied.mesh.get_group(axis)) for axis in range(2)]
    assert axes[0] != axes[1]
    with contextlib.ExitStack() as stack:
        for kind in ("reduce-scatter", "all-reduce", "all-gather"):
            name = "_" + kind.replace("-", "_")

            def count(*args, kind=kind, real=getattr(_redistribute, name), group):
                found[kind, axes.index(dist.get_process_group_ranks(group))] += 1
                return real(*args, group=group)

            stack.enter_context(mock.patch.object(_redistribute, name, count))
        loss = applied.step(ids, target).item()
    assert abs(loss - expected[0][0]) < 1e-5 * abs(loss), (loss, expected[0][0])
    for name, parameter in applied.named_parameters():
        torch.testing.assert_close(parameter.grad.full_tensor(), expected[1][name], rtol=1e-4, atol=1e-6)
    planned = collections.Counter()
    gradients = set()
    for placed in made.stages[0].operators:
        for term, steps in placed.sums.items():
            if term < len(placed.operator.planned):
                gradients.add(steps)
            elif placed.name == made.program.loss:
                planned.update(steps)
            else:
                planned.update(steps * made.micro_batches)
    for steps in gradients:
        planned.update(steps)
    assert {axis for _, axis in planned} == {0, 1}, planned
    assert found == planned, (found, planned)
    applied.close()
    torch_case.leave()


def several(rank, plans, expected):
    torch_case.join()
    for made in plans:
        train(made, expected, 3).close()
    torch_case.leave()


def shared(rank, made, expected):
    """Both stages keep the same values."""
    torch_case.join()
    applied = train(made, expected, 5, tied=True)
    whole = dict(applied.named_parameters())["tokens.weight"].full_tensor().detach()
    seen = [torch.empty_like(whole) for _ in range(4)]
    dist.all_gather(seen, whole)
    assert all(torch.equal(other, whole) for other in seen)
    applied.close()
    torch_case.leave()


def copies(rank, made, dropping):
    """With dropout: copies of a part draw the same numbers, and so copies of parameters stay equal."""
    torch_case.join()
    ids, target = next(plan_case.batches(1, BATCH))
    seen = {}
    for seed in (1, 1, 2):
        applied = apply(plan_case.make_model(dropout=dropping), made, seed=seed)
        optimizer = torch.optim.SGD(applied.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            losses.append(applied.evaluate(ids, target).item())
            applied.step(ids, target)
            optimizer.step()
        assert losses == seen.setdefault(seed, losses)
        for name, parameter in applied.named_parameters():
            for axis, placement in enumerate(parameter.placements):
                part = parameter.to_local().detach()
                others = [torch.empty_like(part) for _ in range(applied.mesh.size(axis))]
                dist.all_gather(others, part.contiguous(), group=applied.mesh.get_group(axis))
                if placement == Replicate():
                    assert all(torch.equal(part, other) for other in others), name
        applied.close()
    assert seen[1] != seen[2]
    torch_case.leave()


def without_memory(rank, made, expected):
    """A model on the meta device, filled afterwards; and parameters that are not trained."""
    torch_case.join()
    with torch.device("meta"):
        empty = plan_case.make_model()
    empty.tokens.weight.requires_grad_(False)
    applied = apply(empty, made, device="cpu")
    weights = dict(plan_case.make_model().named_parameters())
    with torch.no_grad():
        for name, parameter in applied.named_parameters():
            parameter.copy_(distribute_tensor(weights[name], applied.mesh, parameter.placements))
    ids, target = next(plan_case.batches(1, BATCH))
    torch.testing.assert_close(applied.step(ids, target).item(), expected[0][0], rtol=1e-4, atol=0)
    for name, parameter in applied.named_parameters():
        assert (parameter.grad is None) == (name == "tokens.weight"), name
    other = make_plan(hosts=1, devices_per_host=2, stages=2)
    small = make_plan(hosts=1, devices_per_host=1)
    for model, plans, text in (
        (empty, (made, other), "all need the same"),
        (empty, (small, small), "the plan is for 1 devices, and the job has 2 ranks"),
        (plan_case.make_model(width=16), (made, made), "'tokens.weight' of shape (48, 32), and the model one of shape (48, 16)"),
        (torch.nn.Linear(2, 2), (made, made), "and the model no such parameter"),
    ):
        try:
            apply(model, plans[rank])
            raise AssertionError(f"not refused: {text}")
        except errors.InputError as error:
            assert text in str(error), error
    applied.close()
    torch_case.leave()


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.expected = alone()

    def test_two_stages_of_two_by_two(self):
        made = make_plan(stages=2, data_parallel=2, tensor_parallel=2)
        ranks.run(8, as_planned, made, self.expected, timeout=3 * ranks.TIMEOUT)

    def test_sums_are_made_as_priced(self):
        made = make_plan(hosts=2, devices_per_host=2, stages=1, micro_batches=2)
        ranks.run(4, counted, made, self.expected, timeout=3 * ranks.TIMEOUT)

    def test_other_plans(self):
        """Whatever the planner finds on four devices, one stage, no data parallelism, another schedule."""
        four = {"hosts": 1, "devices_per_host": 4}
        plans = [
            make_plan(**four, stages=1, micro_batches=1),
            make_plan(**four, data_parallel=1, tensor_parallel=4, micro_batches=2),
            make_plan(**four, stages=2, data_parallel=1, tensor_parallel=2, schedule="gpipe"),
            make_plan(**four, stages=3),
            make_plan(cluster=plan_case.UNEQUAL, stages=2),
        ]
        # Like hosts together: no stage waits for a slow device among fast ones.
        self.assertEqual([stage.ranks for stage in plans[-1].stages], [(1, 3), (0, 2)])
        ranks.run(4, several, plans, self.expected, timeout=3 * ranks.TIMEOUT)

    def test_dropout(self):
        made = make_plan(dropout=0.2, hosts=1, devices_per_host=4, data_parallel=2, tensor_parallel=2, micro_batches=2)
        ranks.run(4, copies, made, 0.2, timeout=3 * ranks.TIMEOUT)

    def test_a_model_without_memory(self):
        made = make_plan(hosts=1, devices_per_host=2, data_parallel=1, tensor_parallel=2)
        ranks.run(2, without_memory, made, self.expected, timeout=3 * ranks.TIMEOUT)

    def test_a_parameter_of_two_stages(self):
        made = make_plan(tied=True, hosts=1, devices_per_host=4, stages=2, data_parallel=1, tensor_parallel=2)
        assert made.homes["tokens.weight"] == [0, 1]
        ranks.run(4, shared, made, alone(tied=True), timeout=3 * ranks.TIMEOUT)


if __name__ == "__main__":
    sys.exit(unittest.main())
