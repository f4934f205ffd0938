# SPDX-License-Identifier: Apache-2.0
"""Weights between launches that meet at an address: two torchruns, and worlds of forked ranks for what goes wrong."""

import collections
import contextlib
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
import unittest

import torch
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

import crossmesh
import ranks
import sync_case
import torch_case
from crossmesh import maps
from crossmesh.adapters._weights import WeightTransfer
from crossmesh.torch import WeightSync

LONG = "CROSSMESH_TEST_LONG" in os.environ
SECRET = "a secret for tests only"


class Launch:
    """A torchrun of sync_case.py. What its ranks say is kept."""

    def __init__(self, role, count, *arguments):
        here = os.path.dirname(os.path.abspath(__file__))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count),
                   "--monitor-interval", "0.2", os.path.join(here, "sync_case.py"), role, *arguments]  # fmt: skip
        environment = {**os.environ, "PET_LOCAL_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT)  # fmt: skip
        self.lines = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def end(self, timeout):
        """Its exit status; what it has said is complete then."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(30)
            raise AssertionError(f"did not end within {timeout} s:\n{self.text()}") from None
        self.reader.join(10)
        self.process.stdout.close()
        return status

    def text(self):
        return "".join(self.lines)

    def said(self, word):
        """Of each rank the numbers after that word."""
        found = collections.defaultdict(list)
        for rank, number in re.findall(rf"^\w+ (\d+) {word} (\d+)", self.text(), re.MULTILINE):
            found[int(rank)].append(int(number))
        return found


class TwoLaunches(unittest.TestCase):
    def run_both(self, size, *modes, timeout=3 * ranks.TIMEOUT):
        """The trainer, and launches of servers one after the other; all but the last are killed."""
        address = f"tcp://127.0.0.1:{ranks.free_port()}"
        trainer = Launch("trainer", 4, address, size, modes[-1])
        servers = []
        for mode in modes:
            servers.append(Launch("server", 3, address, size, mode))
            if mode == "doomed":
                self.assertNotEqual(servers[-1].end(timeout), 0, servers[-1].text())
        self.assertEqual(trainer.end(timeout), 0, trainer.text())
        self.assertEqual(servers[-1].end(timeout), 0, servers[-1].text())
        return trainer, servers

    def check(self, trainer, servers, syncs):
        delivered = trainer.said("delivered")
        self.assertEqual(sorted(delivered), [0, 1, 2, 3], trainer.text())
        for rank in range(3):
            self.assertEqual(sum((s.said("wrong")[rank] for s in servers), []), [])
            verified = sum((s.said("verified")[rank] for s in servers), [])
            for versions in delivered.values():
                self.assertEqual(len(versions), syncs)
                # One that a rank died in is not delivered, though some may have it; no other is missing.
                self.assertLessEqual(set(versions), set(verified))
        extra = re.findall(r"extra (\d+)", trainer.text() + servers[0].text())
        self.assertEqual(len(extra), 4 + 3)
        self.assertLess(max(map(int, extra)), 64 << 20)

    def test_a_server_is_killed_and_another_comes(self):
        trainer, servers = self.run_both("50m" if LONG else "small", "doomed", "layers",
                                         timeout=(8 if LONG else 3) * ranks.TIMEOUT)  # fmt: skip
        self.check(trainer, servers, 20)
        gone = [v for v in trainer.said("delivered")[0] if v > 6]
        self.assertGreater(gone[0], 7, "the trainer has waited for the dead")

    @unittest.skipUnless(LONG, "./test long")
    def test_a_thousand_million_parameters(self):
        trainer, servers = self.run_both("1b", "count", timeout=6 * ranks.TIMEOUT)
        self.check(trainer, servers, 2)
        print("".join(line for line in trainer.lines + servers[0].lines if "set" in line or "seconds" in line))

    @unittest.skipUnless(LONG, "./test long")
    def test_what_it_costs_the_trainer(self):
        trainer, servers = self.run_both("50m", "time", timeout=6 * ranks.TIMEOUT)
        print("".join(line for line in trainer.lines + servers[0].lines if "steps" in line or "cpu" in line))


class Costs(unittest.TestCase):
    """What plan and registration of a thousand million parameters take; their memory is never touched."""

    def test_of_a_thousand_million_parameters(self):
        def prepare(rank):
            os.environ["XM_HOST"] = f"host{rank}"  # all to all over the network: the most that is packed
            trains = rank < 4
            mesh = DeviceMesh("cpu", torch.arange(4).reshape(2, 2) if trains else torch.arange(3), _init_backend=False,
                              _rank=rank if trains else rank - 4)  # fmt: skip
            given = {}
            for name, parameter in sync_case.make("1b").named_parameters():
                lies = name.split(".")[-2] in ("o", "down")
                cut = (Shard(0), Shard(1)) if lies else (_StridedShard(0, split_factor=2), Shard(0))
                placements = [Shard(1 if lies else 0)]
                if parameter.ndim == 1:
                    cut, placements = (Shard(0), Replicate()), [Replicate()]
                placements = cut if trains else placements
                shape, _ = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
                given[name] = DTensor.from_local(torch.empty(shape, dtype=torch.bfloat16), mesh, placements,
                                                 run_check=False, shape=parameter.shape, stride=parameter.stride())  # fmt: skip
            with crossmesh.Job.from_env() as job:
                job.barrier()
                peak, began = sync_case.Peak(), time.process_time()
                transfer = WeightTransfer(job, **{"src" if trains else "dst": given})
                used, rounds = time.process_time() - began, transfer._batch._rounds
                assert transfer.plan.bytes > 1.8e9, transfer.plan.bytes
                assert 0 < sum(turn.reshard.staging_bytes for turn in rounds) + peak.bytes() <= 64 << 20
                spent = [float(text) for text in job.allgather(str(used).encode())]
                # All ranks on one processor would take a second.
                assert sum(spent) < ranks.TIMEOUT / 120, spent
                if rank == 0:
                    print(f"plan and registration: {sum(spent):.3f} s of processors, {max(spent):.3f} s of the busiest rank; "
                          f"{peak.bytes() >> 20} MiB and {rounds[0].reshard.staging_bytes >> 20} MiB to pack")
                transfer.close()

        ranks.run(7, prepare)

    def test_of_boxes_that_many_ranks_pack_for_many(self):
        def prepare(rank):
            os.environ.update(XM_HOST=f"host{rank}", XM_WINDOW="64")
            sends, width = rank < 6, 24576  # boxes of 32 MiB, from each to each
            mesh = DeviceMesh("cpu", torch.arange(6), _init_backend=False, _rank=rank % 6)
            cut = Shard(0 if sends else 1)
            local = torch.empty((width // 6, width) if sends else (width, width // 6), dtype=torch.bfloat16)
            given = {"weight": DTensor.from_local(local, mesh, [cut], run_check=False, shape=torch.Size((width, width)),
                                                  stride=(width, 1))}  # fmt: skip
            with crossmesh.Job.from_env() as job:
                with contextlib.closing(WeightTransfer(job, **{"src" if sends else "dst": given})) as transfer:
                    packs = [turn.reshard.staging_bytes for turn in transfer._batch._rounds]
                    assert (8 << 20 if sends else 0) <= sum(packs) <= 32 << 20, packs

        ranks.run(12, prepare)


def whole(name, shape, version):
    return torch_case.whole(shape, torch.bfloat16, hash(name) % 1000 + 1000 * version)


SHAPES = {"up": (24, 10), "down": (7, 12), "norm": (5,)}


def world(count):
    return DeviceMesh("cpu", torch.arange(count), _init_backend=False, _rank=int(os.environ["RANK"]))


def tensors(count, placement, version=None, shapes=SHAPES):
    mesh = world(count)
    state = {}
    for name, shape in shapes.items():
        full = torch.zeros(shape, dtype=torch.bfloat16) if version is None else whole(name, shape, version)
        state[name] = torch_case.make(full, mesh, [placement if len(shape) > 1 else Replicate()])
    return state


def fill(state, version):
    for name, tensor in state.items():
        full = whole(name, tensor.shape, version)
        tensor.to_local().copy_(torch_case.shard(full, tensor.device_mesh, tensor.placements))


def check(state, version):
    for name, tensor in state.items():
        wanted = torch_case.shard(whole(name, tensor.shape, version), tensor.device_mesh, tensor.placements)
        assert torch.equal(torch_case.bits(tensor.to_local()), torch_case.bits(wanted)), (name, version)


def meet(port, role, **options):
    options = {"secret": SECRET, "timeout": ranks.TIMEOUT / 2, **options}
    return crossmesh.rendezvous(f"tcp://127.0.0.1:{port}", role, **options)


class Flags:
    """What processes of different worlds wait for."""

    def __init__(self):
        self.values = multiprocessing.Manager().dict()

    def set(self, name, value=True):
        self.values[name] = value

    def wait(self, name):
        deadline = time.monotonic() + ranks.TIMEOUT / 2
        while name not in self.values:
            assert time.monotonic() < deadline, f"{name} does not come"
            time.sleep(0.01)
        return self.values[name]


def run_worlds(*worlds):
    """Some trainers and worlds of servers, as functions of (rank, port, flags)."""
    port, flags = ranks.free_port(), Flags()
    for pids in [ranks.start(count, main, port, flags) for count, main in worlds]:
        ranks.wait(pids)


class Worlds(unittest.TestCase):
    def test_late_servers_get_it_from_their_peers(self):
        def trainer(rank, port, flags):
            state = tensors(2, Shard(0), 5)
            with WeightSync(meet(port, "trainer"), src=state) as sync:
                sync.start(5)
                assert sync.wait() == 5 and sync.servers == 1
                # From here on the trainer's tensors are nobody's business, as its next step shows.
                fill(state, 6)
                flags.set(f"sent {rank}")
                flags.wait("late")

        def server(rank, port, flags):
            state = tensors(2, Shard(1))
            with WeightSync(meet(port, "server", world="first"), dst=state) as sync:
                sync.start()
                assert sync.wait() == 5
                check(state, 5)
                flags.wait("late")

        def late(rank, port, flags):
            flags.wait("sent 0"), flags.wait("sent 1")
            state = tensors(3, Shard(0))
            with WeightSync(meet(port, "server", world="late"), dst=state) as sync:
                sync.start()
                assert sync.wait(ranks.SOON) == 5
                check(state, 5)
                flags.set(f"late {rank}")
                if rank == 0:
                    flags.wait("late 1"), flags.wait("late 2")
                    flags.set("late")
                flags.wait("late")

        run_worlds((2, trainer), (2, server), (3, late))

    def test_sources_that_are_copied_may_change_at_once(self):
        def trainer(rank, port, flags):
            state = tensors(2, Shard(1), 0)
            with WeightSync(meet(port, "trainer"), src=state, copies=True) as sync:
                for version in range(4):
                    fill(state, version)
                    sync.start(version)
                    fill(state, 99)
                    assert sync.wait() == version
                flags.wait("end")

        def server(rank, port, flags):
            state = tensors(1, Replicate())
            with WeightSync(meet(port, "server"), dst=state) as sync:
                for version in range(4):
                    sync.start()
                    while not sync.test():
                        time.sleep(0.001)
                    check(state, version)
                flags.set("end")

        run_worlds((2, trainer), (1, server))

    def test_a_server_that_fuses_what_it_gets(self):
        joined = [maps.fuse("both", ["one", "other"])]

        def trainer(rank, port, flags):
            state = {name: torch.full((2, 3), float(place)) for place, name in enumerate(("one", "other"))}
            with WeightSync(meet(port, "trainer"), src=state) as sync:
                sync.start(4)
                assert sync.wait() == 4
                flags.wait("end")

        def server(rank, port, flags):
            state = {"both": torch.zeros(4, 3)}
            passing = meet(port, "server", world="first")
            with self.assertRaisesRegex(crossmesh.InputError, "passes_on"):
                WeightSync(passing, dst=state, maps=joined)
            passing.close()
            with WeightSync(meet(port, "server", passes_on=False), dst=state, maps=joined) as sync:
                sync.start()
                assert sync.wait() == 4
                assert state["both"].tolist() == [[0.0] * 3] * 2 + [[1.0] * 3] * 2
                flags.set("end")

        run_worlds((1, trainer), (1, server))

    def test_what_is_cancelled_is_no_version(self):
        def trainer(rank, port, flags):
            state = tensors(2, Shard(0), 1)
            with WeightSync(meet(port, "trainer"), src=state) as sync:
                sync.start(1)  # the server is there, but does not start
                flags.wait("there")
                if rank == 1:
                    sync.cancel()
                try:
                    sync.wait(ranks.SOON)
                    raise AssertionError("a version that was cancelled")
                except crossmesh.AbortedError as error:
                    assert "rank 1 of world 'trainer' has cancelled" in str(error), error
                fill(state, 2)
                flags.set(f"cancelled {rank}")
                sync.start(2)
                assert sync.wait() == 2
                flags.wait("end")

        def server(rank, port, flags):
            state = tensors(1, Replicate())
            with WeightSync(meet(port, "server"), dst=state) as sync:
                flags.set("there")
                flags.wait("cancelled 0"), flags.wait("cancelled 1")
                sync.start()
                assert sync.wait() == 2
                check(state, 2)
                flags.set("end")

        run_worlds((2, trainer), (1, server))


class Refusals(unittest.TestCase):
    """Each is one sentence, on all ranks, within 5 seconds of what caused it."""

    def refused(self, call, *words, within=5.0):
        began = time.monotonic()
        try:
            call()
        except crossmesh.CrossmeshError as error:
            sentence = str(error)
        else:
            raise AssertionError("nothing was refused")
        for word in words:
            assert word in sentence, (word, sentence)
        assert time.monotonic() - began < within * ranks.TIMEOUT / 120, (time.monotonic() - began, sentence)

    def test_only_some_ranks_start(self):
        def trainer(rank, port, flags):
            with WeightSync(meet(port, "trainer"), src=tensors(3, Shard(0), 0)) as sync:
                if rank == 0:
                    sync.start()
                    self.refused(sync.wait, "ranks 1, 2 of world 'trainer' (3 ranks): start() not called within 4 s")
                    flags.set("end")
                flags.wait("end")

        run_worlds((3, trainer))

    def test_only_some_ranks_come(self):
        def trainer(rank, port, flags):
            if rank != 1:
                self.refused(lambda: meet(port, "trainer", timeout=3), "rank 1 of world 'trainer' (3 ranks)")

        run_worlds((3, trainer))

    def test_secrets_differ(self):
        def trainer(rank, port, flags):
            meeting = meet(port, "trainer")
            flags.wait("end")
            meeting.close()

        def server(rank, port, flags):
            self.refused(lambda: meet(port, "server", secret="another secret, as long"),
                         "rank 0 (host", "does not know the secret of the meeting")  # fmt: skip
            flags.set("end")

        run_worlds((1, trainer), (1, server))

    def test_versions_differ(self):
        def trainer(rank, port, flags):
            meeting = meet(port, "trainer")
            flags.wait("end")
            meeting.close()

        def server(rank, port, flags):
            # A library of another version, as far as the place can tell.
            from crossmesh import _native

            path = _native.library_path()
            other = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"libcrossmesh-other-{os.getpid()}.so")
            with open(path, "rb") as file:
                content = file.read()
            with open(other, "wb") as file:
                file.write(content.replace(b"\x000.2.0\x00", b"\x000.9.7\x00"))
            os.environ["CROSSMESH_LIBRARY"] = other
            for functions in (_native.lib, _native.raw):
                for name in [n for n in vars(functions) if n.startswith("xm_")]:
                    delattr(functions, name)
            _native._loaded = None
            try:
                self.refused(lambda: meet(port, "server"), "has crossmesh 0.9.7, the meeting at", "has 0.2.0")
            finally:
                os.unlink(other)
            flags.set("end")

        run_worlds((1, trainer), (1, server))

    def test_names_and_shapes_differ(self):
        words = ("gone is wanted but no rank has it", "up has shape (24, 10)", "extra is wanted by no rank")

        def trainer(rank, port, flags):
            shapes = {**SHAPES, "extra": (4, 4)}
            with WeightSync(meet(port, "trainer"), src=tensors(2, Shard(0), 0, shapes), strict=True) as sync:
                sync.start()
                flags.set(f"started {rank}")
                self.refused(sync.wait, *words)
                flags.wait("end")

        def server(rank, port, flags):
            shapes = {**SHAPES, "gone": (3, 3), "up": (24, 11)}
            with WeightSync(meet(port, "server"), dst=tensors(1, Replicate(), None, shapes), strict=True) as sync:
                flags.wait("started 0"), flags.wait("started 1")
                sync.start()
                self.refused(sync.wait, *words)
                flags.set("end")

        run_worlds((2, trainer), (1, server))


if __name__ == "__main__":
    unittest.main()
