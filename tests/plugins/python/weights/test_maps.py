# SPDX-License-Identifier: Apache-2.0
"""Maps of names and boxes, against numpy: what it makes of whole arrays is what every rank has to hold."""

import math
import os
import random
import sys
import unittest

import numpy
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard

import ranks
import torch_case
from crossmesh import InputError, Network, Plan, TensorSpec, maps
from crossmesh.torch import StateDictTransfer
from crossmesh.torch import _transfer
from crossmesh.torch._describe import Described
from crossmesh.torch._parts import items

ROUNDS = 500
SHARE = int(os.environ.get("TEST_SHARE", "1"))
WORLD = 6


def fused(arrays, axis, groups):
    """By numpy, group after group."""
    parts = [numpy.split(array, groups, axis) for array in arrays]
    return numpy.concatenate([own[g] for g in range(groups) for own in parts], axis)


class Case:
    """Random sources, maps for them, and what numpy makes of the sources."""

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.maps, self.sources, self.targets, self.kinds = [], {}, {}, []
        for layer in range(rng.randint(1, 3)):
            for kind in rng.sample(["rename", "fuse", "split", "stack", "unstack", "transpose", "tie", "cast"], 2):
                self.kinds.append(kind)
                getattr(self, kind)(f"layers.{layer}.{kind}")
        # What is split in one place and renamed in another is found by patterns that fit both.
        self.maps.append(maps.rename("layers.*.up.*", "stage.*.over.*"))
        for name in [n for n in self.targets if ".up." in n]:
            layer, rest = name.removeprefix("layers.").split(".up.")
            self.targets[f"stage.{layer}.over.{rest}"] = self.targets.pop(name)

    def array(self, *shape):
        return numpy.frombuffer(self.rng.randbytes(4 * math.prod(shape)), dtype=numpy.int32).reshape(shape)

    def shape(self, dims=None):
        return [self.rng.randint(1, 7) for _ in range(dims or self.rng.randint(1, 3))]

    def rename(self, at):
        self.sources[f"{at}.a"] = self.targets[f"renamed.{at}.b"] = self.array(*self.shape())
        self.maps.append(maps.rename(f"{at}.a", f"renamed.{at}.b"))

    def fuse(self, at):
        shape, groups = self.shape(), self.rng.choice([1, 1, 2, 3])
        axis = self.rng.randrange(len(shape))
        own = [self.array(*shape[:axis], groups * self.rng.randint(1, 4), *shape[axis + 1 :]) for _ in "qkv"]
        self.sources.update({f"{at}.{part}": array for part, array in zip("qkv", own)})
        self.targets[f"{at}.qkv"] = fused(own, axis, groups)
        self.maps.append(maps.fuse(f"{at}.qkv", [f"{at}.{part}" for part in "qkv"], axis=axis, groups=groups))

    def split(self, at):
        shape, groups = self.shape(), self.rng.choice([1, 1, 2, 3])
        axis, shares = self.rng.randrange(len(shape)), [self.rng.randint(1, 3) for _ in "qkv"]
        own = [self.array(*shape[:axis], groups * share, *shape[axis + 1 :]) for share in shares]
        self.targets.update({f"{at}.up.{part}": array for part, array in zip("qkv", own)})
        self.sources[f"{at}.qkv"] = fused(own, axis, groups)
        names = [f"{at}.up.{part}" for part in "qkv"]
        self.maps.append(maps.split(f"{at}.qkv", names, shares, axis=axis, groups=groups))

    def stack(self, at):
        shape, count = self.shape(2), self.rng.choice([1, 3, 11])
        own = [self.array(*shape) for _ in range(count)]
        self.sources.update({f"{at}.{i}.w": array for i, array in enumerate(own)})
        self.targets[f"{at}.w"] = numpy.stack(own)
        self.maps.append(maps.stack(f"{at}.w", f"{at}.#.w"))

    def unstack(self, at):
        shape, count = self.shape(2), self.rng.choice([1, 3, 11])
        self.sources[f"{at}.w"] = self.array(count, *shape)
        self.targets.update({f"{at}.{i}.w": self.sources[f"{at}.w"][i] for i in range(count)})
        self.maps.append(maps.unstack(f"{at}.w", f"{at}.#.w"))

    def transpose(self, at):
        shape = self.shape()
        order = self.rng.sample(range(len(shape)), len(shape))
        self.sources[f"{at}.t"] = self.array(*shape)
        self.targets[f"{at}.t"] = self.sources[f"{at}.t"].transpose(order)
        self.maps.append(maps.transpose(f"{at}.t", order))

    def tie(self, at):
        self.sources[f"{at}.embed"] = self.targets[f"{at}.embed"] = self.targets[f"{at}.head"] = self.array(9, 4)
        self.maps.append(maps.tie(f"{at}.embed", f"{at}.head"))

    def cast(self, at):
        self.sources[f"{at}.c"] = self.array(*self.shape())
        self.targets[f"{at}.c"] = self.sources[f"{at}.c"].astype(numpy.int64)
        self.maps.append(maps.cast(f"{at}.c", "int64"))

    def pieces(self):
        shapes = ({name: array.shape for name, array in side.items()} for side in (self.sources, self.targets))
        return maps.pieces(self.maps, *shapes)


def placed(piece, box):
    """A source's box as the target has it, by numpy."""
    order = [axis for axis in piece.axes if axis >= 0]
    rest = [d for d in range(box.ndim) if d not in order]
    return box.transpose(order + rest).reshape([high - low for low, high in piece.at])


def slices(box):
    return tuple(slice(low, high) for low, high in box)


def random_place(rng, name, array):
    """On a mesh of some of the ranks; and what each rank has of the array, by torch."""
    sizes = rng.choice([(1,), (2,), (3,), (4,), (2, 2), (3, 2), (2, 1, 3)])
    members = rng.sample(range(WORLD), math.prod(sizes))
    placements = [rng.choice(["R", ["S", rng.randrange(array.ndim), 1, -1]]) for _ in sizes]
    if len(sizes) == 2 and rng.random() < 0.4:  # as FSDP does over tensor parallelism, uneven as well
        d = rng.randrange(array.ndim)
        placements = [["S", d, sizes[1], -1], ["S", d, 1, -1]]
    about = Described(name, array.shape, str(array.dtype), sizes, members, placements)
    about.nested = rng.random() < 0.5
    parts = {}
    for position, member in enumerate(members):
        at, local = numpy.unravel_index(position, sizes), torch.from_numpy(array.copy())
        steps = [(p, parts_, int(i)) for p, parts_, i in zip(placements, sizes, at) if p != "R"]
        if about.nested:
            steps = [(["S", p[1], 1, -1], n, i) for p, n, i in reversed(steps)] if steps and steps[0][0][2] > 1 else steps
        for (_, d, factor, _), count, index in steps:
            local = chunk(local, d, factor, count, index)
        parts[member] = local.contiguous()
    return about, parts


def chunk(tensor, dim, factor, count, index):
    """Torch's, with the empty ones that torch.chunk() leaves out."""

    def cut(whole, number):
        own = list(torch.chunk(whole, number, dim))
        return own + [whole.narrow(dim, 0, 0)] * (number - len(own))

    return torch.cat([cut(part, count)[index] for part in cut(tensor, factor)], dim)


class Numpy(unittest.TestCase):
    def test_pieces(self):
        kinds = set()
        for seed in range(ROUNDS):
            case = Case(seed)
            found = {name: numpy.full(array.shape, -1, array.dtype) for name, array in case.targets.items()}
            count = {name: numpy.zeros(array.shape, int) for name, array in case.targets.items()}
            for piece in case.pieces():
                found[piece.target][slices(piece.at)] = placed(piece, case.sources[piece.source][slices(piece.box)])
                count[piece.target][slices(piece.at)] += 1
                kinds.update(case.kinds)
            for name, array in case.targets.items():
                self.assertTrue((count[name] == 1).all(), (seed, name))
                self.assertTrue(numpy.array_equal(found[name], array), (seed, name))
        self.assertEqual(len(kinds), 8)

    def test_plans(self):
        """All ranks' views of all parts, filled with what is in the box, whose plan has been proved."""
        uneven = 0
        for seed in range(ROUNDS // SHARE):
            case = Case(seed)
            known, have = {}, {}
            wanted, want = {}, {}
            for name, array in case.sources.items():
                known[name], have[name] = random_place(case.rng, name, array)
            for name, array in case.targets.items():
                wanted[name], want[name] = random_place(case.rng, name, array)
            uneven += any(about.boxes() is None for about in (*known.values(), *wanted.values()))
            given, specs = case.pieces(), []
            for rank in range(WORLD):
                own = {name: parts[rank] for name, parts in have.items() if rank in parts}
                there = {name: parts[rank].clone().fill_(-1) for name, parts in want.items() if rank in parts}
                parts = [part for item in items(given, known, wanted, rank, (own, there)) for part in item.parts()]
                for part in parts:
                    self.fill(part, case.sources[part.item.source][slices(part.region)], rank)
                for name, local in there.items():
                    self.assertTrue(torch.equal(local, want[name][rank]), (seed, rank, name))
                if rank == 0:
                    specs = [TensorSpec(part.src, part.dst, 32, part.name) for part in parts]
                self.assertEqual(len(specs), len(parts))
            if seed % 8 == 0:
                Plan(specs, Network(range(WORLD))).verify()
        self.assertGreater(uneven, 10)

    def fill(self, part, box, rank):
        for layout, owned in ((part.src, part.item.mine), (part.dst, part.item.wanted)):
            tile, view = layout.tile(rank), _transfer.part_of(owned, part.region)
            if tile is None or 0 in box[tile].shape:
                continue
            here = torch.from_numpy(box[tile].copy())
            if owned is part.item.mine:
                self.assertTrue(torch.equal(view, here))
            else:
                view.copy_(here)


class Refusals(unittest.TestCase):
    def refused(self, given, sources, targets, *texts, **options):
        with self.assertRaises(InputError) as caught:
            maps.pieces(given, sources, targets, **options)
        for text in texts:
            self.assertIn(text, str(caught.exception))

    def test_all_at_once(self):
        self.refused(
            [],
            {"a": (2, 3), "b": (4,), "c": (1,), "d": (5,)},
            {"a": (3, 2), "b": (4,), "e": (1,), "f": (2,)},
            "a has shape (2, 3) in src and (3, 2) in dst",
            "c is in src but no rank wants it",
            "d is in src but no rank wants it",
            "e is wanted but no rank has it",
            "f is wanted but no rank has it",
        )
        maps.pieces([], {"a": (2,), "c": (1,)}, {"a": (2,)}, strict=False)

    def test_an_element_twice_or_never(self):
        given = [
            maps.Piece("a", ((0, 4), (0, 3)), (0, 1), "t", ((0, 4), (0, 3))),
            maps.Piece("b", ((0, 3), (0, 2)), (0, 1), "t", ((3, 6), (1, 3))),
        ]
        sources = {"a": (4, 3), "b": (3, 2)}
        self.refused(given, sources, {"t": (6, 3)}, "t: [3:4, 1:3] is written twice", "t: [4:6, 0:1] is never written")
        self.refused(given[:1], sources, {"t": (6, 3)}, "t: [4:6, 0:3] is never written", "b is in src")
        self.refused(given[:1], {"a": (3, 3)}, {"t": (4, 3)}, "a has shape (3, 3), in which [0:4, 0:3] is no box")
        self.refused(given[:1] + [given[0]], {"a": (4, 3)}, {"t": (4, 3)}, "t: [0:4, 0:3] is written twice")
        scalars = [maps.Piece("a", (), (), "t", ())] * 2
        self.refused(scalars, {"a": ()}, {"t": ()}, "t: [] is written twice")

    def test_what_maps_cannot_do(self):
        shapes = {"0.q": (4, 2), "0.k": (3, 2), "1.q": (4, 2)}
        self.refused([maps.fuse("*.qk", ["*.q", "*.k"])], shapes, {"0.qk": (7, 2)}, "1.qk needs 1.k, which no rank has")
        self.refused([maps.fuse("*.qk", ["*.q", "*.k"], groups=2)], shapes, {}, "have no 2 equal groups along 0")
        self.refused([maps.fuse("*.qk", ["*.q", "*.k"], axis=1)], shapes, {}, "cannot be fused of tensors of shapes")
        self.refused([maps.split("0.k", ["a", "b"], [1, 1])], shapes, {}, "0.k of shape (3, 2) has no 1 groups of")
        self.refused([maps.stack("e", "#.q"), maps.rename("0.k", "e")], shapes, {}, "e is made by two maps")
        self.refused([maps.stack("e", "#.q")], {"0.q": (1,), "2.q": (1,)}, {}, "e needs number 1 of #.q")
        self.refused([maps.transpose("0.q", [0, 0])], shapes, {}, "cannot be transposed to the order (0, 0)")
        self.refused([maps.cast("*", "int8"), maps.Piece("a", (), (), "a", ())], {}, {}, "pieces or named maps")


def through_ranks(rank, seeds):
    torch_case.join()
    for seed in seeds:
        case = Case(seed)
        sides = {}, {}
        for side, arrays in zip(sides, (case.sources, case.targets)):
            for name, array in sorted(arrays.items()):
                mesh = torch_case.random_mesh(case.rng, dist.get_world_size())
                placements = [case.rng.choice([Replicate(), Shard(case.rng.randrange(array.ndim))])
                              for _ in range(mesh.ndim)]  # fmt: skip
                side[name] = torch_case.make(torch.from_numpy(array.copy()), mesh, placements)
        expected = {name: tensor.to_local().clone() for name, tensor in sides[1].items()}
        for tensor in sides[1].values():
            tensor.to_local().fill_(-1)
        with StateDictTransfer(*sides, maps=case.maps) as transfer:
            for _ in range(2):
                transfer.run()
                for name, local in expected.items():
                    assert torch.equal(sides[1][name].to_local(), local), (seed, rank, name)
                    sides[1][name].to_local().fill_(-1)
                transfer.run()
            transfer.verify()
    torch_case.leave()


def in_rounds(rank):
    """Casts and transposes of more than fits at once."""
    torch_case.join()
    _transfer.STAGING = 1 << 16
    mesh = torch.distributed.tensor.DeviceMesh("cpu", torch.tensor([[0, 1], [2, 3]]), _init_backend=False, _rank=rank)
    whole = torch.randn(512, 300, generator=torch.Generator().manual_seed(3))
    src = {"down": torch_case.make(whole, mesh, [Shard(0), Shard(1)]), "up": torch_case.make(whole.bfloat16(), mesh, [Shard(0), Replicate()])}
    dst = {"down": torch_case.make(torch.zeros(300, 512, dtype=torch.bfloat16), mesh, [Replicate(), Shard(0)]),
           "up": torch_case.make(torch.zeros(512, 300), mesh, [Shard(1), Shard(0)])}  # fmt: skip
    given = [maps.transpose("down"), maps.cast("down", "bfloat16"), maps.cast("up", "float32")]
    with StateDictTransfer(src, dst, maps=given) as transfer:
        assert transfer._batch.rounds > 4, transfer._batch.rounds
        for factor in (1, 3):
            src["down"].to_local().copy_(torch_case.shard(whole * factor, mesh, [Shard(0), Shard(1)]))
            transfer.run()
            down = torch_case.shard((whole * factor).bfloat16().t(), mesh, [Replicate(), Shard(0)])
            assert torch.equal(dst["down"].to_local(), down), rank
            up = torch_case.shard(whole.bfloat16().float(), mesh, [Shard(1), Shard(0)])
            assert torch.equal(dst["up"].to_local(), up), rank
            transfer.verify()
    torch_case.leave()


class Ranks(unittest.TestCase):
    def test_through_ranks(self):
        ranks.run(4, through_ranks, range(12), timeout=2 * ranks.TIMEOUT)

    def test_in_rounds(self):
        ranks.run(4, in_rounds)


if __name__ == "__main__":
    sys.exit(unittest.main())
