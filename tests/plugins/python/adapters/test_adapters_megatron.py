# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's CopyService: over the later contract, with random operations; and under the real swap_model_weights,
with what the NICs of two emulated hosts have carried."""

import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
import types
import unittest

import torch
import torch.distributed as dist

import adapters_case as case
import contract_megatron
import ranks
import torch_case
from crossmesh import errors

INSTALLED = importlib.util.find_spec("megatron")  # before the tests put something in its place
WORLD, HOSTS = 8, 2
VERSIONS = 3


# By contract ---------------------------------------------------------------------------------------


def random_plan(seed, size, batches):
    """Operations of all ranks, and for each receive who sends it what: slices of rows and of columns, several ranks
    that want the same one, and a rank's own."""
    rng = random.Random(seed)
    plans = [contract_megatron.ReshardPlan([], [], batches) for _ in range(size)]
    origins = [{} for _ in range(size)]
    task = 0
    for number in range(12):
        source, first, batch = rng.randrange(size), rng.randrange(6), rng.randrange(batches)
        part = slice(first, first + rng.randrange(1, 3))
        index = (part, slice(None)) if number % 2 else (slice(None), part)
        for taker in rng.sample(range(size), rng.randrange(1, size + 1)):
            name = f"w{number}"
            plans[source].send_ops.append(contract_megatron.TransferOp(name, taker, True, index, task, batch))
            plans[taker].recv_ops.append(contract_megatron.TransferOp(name, source, False, index, task, batch))
            origins[taker][name] = source, index
            task += 1
    return plans, origins


def parameter(name, rank, version):
    return case.whole(f"{name} of {rank}", (8, 8), torch.float32, version)


def by_contract(rank, size):
    contract_megatron.install()
    import crossmesh.megatron

    torch_case.join()
    halves = [dist.new_group(list(half)) for half in (range(size // 2), range(size // 2, size))]
    for seed, group in ((0, None), (1, None), (2, halves[rank * 2 // size])):
        service = crossmesh.megatron.CopyService(group, timeout=ranks.TIMEOUT)
        assert isinstance(service, contract_megatron.CopyService) and service.supports_multiple_runs_per_plan
        plans, origins = random_plan(seed, service.world_size, batches=1 + seed)
        where = service.rank
        for version in range(VERSIONS):
            names = [f"w{number}" for number in range(12)]
            sources = {name: parameter(name, where, version) for name in names}
            targets = {name: torch.zeros(8, 8) for name in names}
            contract_megatron.execute(plans[where], sources, targets, service, parts=2 if seed == 1 else 1)
            for name, target in targets.items():
                wanted = torch.zeros(8, 8)
                if name in origins[where]:
                    source, index = origins[where][name]
                    wanted[index] = parameter(name, source, version)[index]
                assert torch.equal(torch_case.bits(target), torch_case.bits(wanted)), (seed, rank, name, version)
        plans_made = len(service._routes)
        assert plans_made <= 1 + seed, plans_made  # one a batch
        service.close()
    crossmesh.torch.shutdown()
    dist.destroy_process_group()


def without_tasks(rank, size):
    """As 0.16 may call it. Equal bytes are one multicast, whatever they are of; all hear of ends that do not fit."""
    contract_megatron.install()
    import crossmesh.megatron

    torch_case.join()
    service = crossmesh.megatron.CopyService()
    for version in range(VERSIONS):
        # Two that are equal in the first version only.
        sent = [torch.full((5, 3), float(version * i)) for i in range(2)]
        got = [torch.zeros(3, 5).t() for _ in range(2)]  # not contiguous
        if rank == 0:
            for peer in range(1, size):
                for tensor in sent:
                    service.submit_send(tensor.clone(), peer)
        else:
            for tensor in got:
                service.submit_recv(tensor, 0)
        service.submit_send(torch.zeros(0), (rank + 1) % size)
        service.run()
        assert rank == 0 or all(torch.equal(a, b) for a, b in zip(sent, got)), (rank, version, got)
    for room, text in ((8, "rank 0 sends 64 bytes (task 7) to rank 1, which has room for 32"), (0, "does not receive")):
        if rank == 0:
            service.submit_send(torch.zeros(16), 1, task_id=7)
        elif rank == 1 and room:
            service.submit_recv(torch.zeros(room), 0, task_id=7)
        try:
            service.run()
            raise AssertionError("it fits")
        except errors.InputError as error:
            assert text in str(error), error
    if rank == 1:
        service.submit_recv(torch.zeros(4), 2)
    try:
        service.run()
        raise AssertionError("it fits")
    except errors.InputError as error:
        assert "rank 1 receives 16 bytes from rank 2, which does not send them" in str(error), error
    crossmesh.torch.shutdown()
    dist.destroy_process_group()


class Contract(unittest.TestCase):
    def test_the_later_signature(self):
        ranks.run(4, by_contract, 4, hosts=HOSTS)

    def test_without_tasks(self):
        ranks.run(4, without_tasks, 4)

    def test_without_megatron(self):
        if INSTALLED:
            self.skipTest("Megatron-Core is installed")
        code = "import crossmesh.megatron as m\ntry: m.CopyService\nexcept ImportError as error: print(error)"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertIn("crossmesh.megatron needs Megatron-Core", result.stdout, result.stderr)


# Under the real Megatron-Core -----------------------------------------------------------------------

SHAPES = {}
for layer in range(4):
    SHAPES[f"layers.{layer}.qkv"] = ((384, 256), 0)
    SHAPES[f"layers.{layer}.proj"] = ((256, 256), 1)
    SHAPES[f"layers.{layer}.fc1"] = ((1024, 256), 0)
    SHAPES[f"layers.{layer}.fc2"] = ((256, 1024), 1)
    SHAPES[f"layers.{layer}.norm"] = ((256,), None)
MODEL = sum(torch.Size(shape).numel() * 4 for shape, _ in SHAPES.values())


def groups(sets):
    """The process group of `sets` that this rank is in; all ranks make all."""
    made = [(members, dist.new_group(members)) for members in sets]
    return next((group for members, group in made if dist.get_rank() in members), None)


def shard(full, dim, tp, place):
    return full if dim is None else full.chunk(tp, dim)[place]


class Model(torch.nn.Module):
    """What Megatron's resharding looks at: parameters that say how they are split, on the ranks up to `size`."""

    def __init__(self, rank, tp, size=WORLD):
        super().__init__()
        self.config = types.SimpleNamespace(num_moe_experts=None)
        everyone = range(WORLD)
        self.pg_collection = types.SimpleNamespace(
            tp=groups([[r for r in everyone if r // tp == g] for g in range(WORLD // tp)]),
            dp=groups([[r for r in range(size) if r % tp == g] for g in range(tp)]
                      + [[r] for r in range(size, WORLD)]),
            pp=groups([[r] for r in everyone]),
        )  # fmt: skip
        self.tp, self.place = tp, rank % tp
        for name, (shape, dim) in SHAPES.items():
            if rank < size:
                held = torch.nn.Parameter(shard(torch.zeros(shape), dim, tp, self.place).clone())
                held.tensor_model_parallel, held.partition_dim, held.partition_stride = dim is not None, dim or 0, 1
                self.register_parameter(name.replace(".", "_"), held)

    def full(self, name, version):
        shape, dim = SHAPES[name]
        return shard(case.whole(name, shape, torch.float32, version), dim, self.tp, self.place)

    def set(self, version):
        for name in SHAPES:
            held = getattr(self, name.replace(".", "_"), None)
            if held is not None:
                held.data.copy_(self.full(name, version))

    def check(self, version):
        for name in SHAPES:
            held = getattr(self, name.replace(".", "_"))
            assert torch.equal(torch_case.bits(held), torch_case.bits(self.full(name, version))), (name, version)


def operations(plan, source):
    """What Megatron's own plan has this rank send: slice, bytes, to whom."""
    for op in plan.send_ops:
        tensor = dict(source.named_parameters())[op.param_name][op.my_slice]
        yield op.param_name, str(op.my_slice), tensor.numel() * 4, op.peer_rank


def refit(rank, src, dst, path):
    os.environ["XM_METRICS_FILE"] = path + "/%r.prom"
    from megatron.core.resharding import swap_model_weights

    import crossmesh.megatron

    torch_case.join()
    source, target = Model(rank, *src), Model(rank, *dst)
    service = crossmesh.megatron.CopyService(timeout=ranks.TIMEOUT)
    for version in range(VERSIONS):
        source.set(version)
        swap_model_weights(source, target, refit_method=service)
        target.check(version)
    assert len(service._routes) == 1, "planned once"
    mine = [(rank, *operation) for operation in operations(target._cached_reshard_plan, source)]
    everyone = [None] * WORLD
    dist.all_gather_object(everyone, mine)
    if rank == 0:
        torch.save([operation for own in everyone for operation in own], path + "/operations")
    crossmesh.torch.shutdown()
    dist.destroy_process_group()


def host(rank):
    return rank * HOSTS // WORLD


def busiest(transfers):
    """The most bytes that a host sends or receives, as a multiple of the model."""
    most = 0
    for at in range(HOSTS):
        most = max(most, sum(size for a, b, size in transfers if a == at != b), sum(
            size for a, b, size in transfers if b == at != a))  # fmt: skip
    return most / MODEL


class RealMegatron(unittest.TestCase):
    def refit(self, src, dst):
        with tempfile.TemporaryDirectory() as path:
            ranks.run(WORLD, refit, src, dst, path, hosts=HOSTS)
            planned = torch.load(path + "/operations")
            carried = {"send": [0] * HOSTS, "receive": [0] * HOSTS}
            for rank in range(WORLD):
                with open(f"{path}/{rank}.prom") as file:
                    text = file.read()
                found = re.findall(r'crossmesh_nic_bytes_total\{.*nic="tcp".*direction="(\w+)".*\} (\d+)', text)
                self.assertTrue(found, text)
                for direction, count in found:
                    carried[direction][host(rank)] += int(count)
        measured = max(map(max, carried.values())) / VERSIONS / MODEL
        theirs = busiest([(host(rank), host(peer), size) for rank, _, _, size, peer in planned])
        # The least for these sources: each host takes once what its ranks want of the other's.
        once = {(rank, name, part, host(peer)): size for rank, name, part, size, peer in planned}
        least = busiest([(host(rank), to, size) for (rank, _, _, to), size in once.items()])
        print(f"{src} -> {dst}: busiest NIC {measured:.4f} x the model, Megatron's own operations {theirs:.3f} x, "
              f"least {least:.3f} x")  # fmt: skip
        self.assertLessEqual(measured, 1.01 * least)
        self.assertGreaterEqual(measured, 0.999 * least)
        return round(theirs, 2), round(least, 2)

    def test_tp8_to_tp1(self):
        self.assertEqual(self.refit((8,), (1,)), (2.0, 0.5))

    def test_tp8_to_tp2(self):
        self.assertEqual(self.refit((8,), (2,)), (1.0, 0.5))

    def test_tp4_of_one_host_to_tp8(self):
        self.assertEqual(self.refit((4, 4), (8,)), (0.5, 0.5))

    def test_tp4_on_both_hosts_to_tp8(self):
        self.assertEqual(self.refit((4,), (8,)), (0.5, 0.5))


if __name__ == "__main__":
    sys.exit(unittest.main())
