# SPDX-License-Identifier: Apache-2.0
"""Ray's tensor transport: over a registry made for the test, with actors that are processes; and under the real Ray."""

import functools
import importlib.util
import inspect
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, Shard

import adapters_case as case
import contract_ray
import ranks
import torch_case
from crossmesh import errors

INSTALLED = importlib.util.find_spec("ray")  # before the tests put something in its place
ACTORS = 4
TRAINERS, SERVERS = 4, 4


def content(obj_id):
    """An object of several tensors: every dtype, one without elements, one that is not contiguous."""
    tensors = [torch_case.whole((3, 5), dtype, len(obj_id) + ord(obj_id[-1])) for dtype in torch_case.DTYPES]
    return [*tensors, torch.zeros(0, 4), case.whole(obj_id, (64, 1000), torch.float32, 1).t()]


def same(tensors, obj_id):
    wanted = content(obj_id)
    return len(tensors) == len(wanted) and all(
        tensor.dtype == other.dtype and torch.equal(torch_case.bits(tensor), torch_case.bits(other))
        for tensor, other in zip(tensors, wanted)
    )


def actor(rank, crew, store_port):
    """What Ray's actor does with the calls that the owner of an object makes, each in a thread of its own."""
    from crossmesh.adapters import ray as adapter

    torch.set_num_threads(1)
    manager, objects, threads = adapter.TensorTransport(), {}, []
    weights = {}

    def background(function, *arguments):
        def run():
            try:
                answer = function(*arguments)
            except Exception as error:
                answer = error
            crew.answer(rank, answer)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return crew.NOTHING

    def receive(obj_id, meta, about, buffers):
        targets = [torch.empty(shape, dtype=dtype) for shape, dtype in meta.tensor_meta] if buffers else None
        tensors = manager.recv_multiple_tensors(obj_id, meta, about, targets)
        if targets is not None:
            assert all(tensor is target for tensor, target in zip(tensors, targets))
        return same(tensors, obj_id)

    def move(version):
        """A whole model: trainers hold TP2 x PP2, servers TP2 x DP2, each side in a torch world of its own."""
        job = adapter.group_job("weights")
        if not weights:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            here = rank % TRAINERS
            os.environ.update(MASTER_PORT=str(store_port[rank // TRAINERS]), RANK=str(here), WORLD_SIZE="4")
            dist.init_process_group("gloo")
            if rank < TRAINERS:
                weights["state"] = case.training(rank, torch.float32, version)
                weights["transfer"] = adapter.WeightTransfer(job, weights["state"])
            else:
                mesh = DeviceMesh("cpu", torch.arange(2) + here // 2 * 2, _init_backend=False, _rank=here)
                weights["state"] = {
                    name: torch_case.make(torch.zeros(shape), mesh, [placement])
                    for name, shape, placement, _ in case.weights()
                }
                weights["transfer"] = adapter.WeightTransfer(job, None, weights["state"])
        if rank < TRAINERS:
            case.train(weights["state"], version)
        weights["transfer"].run()
        weights["transfer"].verify()
        if rank >= TRAINERS:
            for name, shape, placement, _ in case.weights():
                tensor, full = weights["state"][name], case.whole(name, shape, torch.float32, version)
                wanted = torch_case.shard(full, tensor.device_mesh, [placement])
                assert torch.equal(torch_case.bits(tensor.to_local()), torch_case.bits(wanted)), (rank, name, version)

    def answer(name, argument):
        if name == "call":
            function, arguments = argument
            return function(None, *arguments)
        if name == "extract":
            return manager.extract_tensor_transport_metadata(argument, objects.setdefault(argument, content(argument)))
        if name == "send":
            obj_id, meta, about = argument
            return background(manager.send_multiple_tensors, objects[obj_id], meta, about)
        if name == "receive":
            return background(receive, *argument)
        if name == "receive alone":
            obj_id, meta, about = argument
            return background(manager.recv_multiple_tensors, obj_id, meta, about)
        if name == "abort":
            return manager.abort_transport(*argument)
        if name == "move":
            return move(argument)
        os.kill(os.getpid(), signal.SIGKILL)

    crew.serve(rank, answer)
    for thread in threads:
        thread.join()
    adapter._leave(None, "crossmesh")


class Actors(unittest.TestCase):
    def group(self, size=ACTORS, name="crossmesh", doomed=()):
        """Actors in a group, and the manager of the process that owns their objects."""
        crew = case.Crew(size)
        contract_ray.install(crew.collect)
        contract_ray.transport_manager_info.clear()
        from crossmesh.adapters import ray as adapter

        adapter._classes.cache_clear()
        adapter._groups.clear()  # of actors with the same numbers
        adapter.register()
        adapter.register()
        transport, devices, kind = contract_ray.transport_manager_info["CROSSMESH"]
        self.assertEqual((devices, kind), (["cpu"], torch.Tensor))
        main = functools.partial(actor, crew=crew, store_port=[ranks.free_port(), ranks.free_port()])
        pids = ranks.start(size, main)
        crew.lead()
        self.addCleanup(ranks.wait, pids, doomed)
        self.addCleanup(crew.dismiss)
        actors = [contract_ray.Actor(crew, number) for number in range(size)]
        adapter.create_group(actors, name, timeout=ranks.TIMEOUT)
        return crew, transport(), actors


class Transport(Actors):
    def test_objects(self):
        crew, manager, actors = self.group()
        self.assertTrue(manager.actor_has_tensor_transport(actors[3]))
        self.assertFalse(manager.is_one_sided())
        stranger = contract_ray.Actor(crew, 77)
        self.assertFalse(manager.actor_has_tensor_transport(stranger))
        with self.assertRaisesRegex(errors.InputError, "are in no group of transport CROSSMESH"):
            manager.get_communicator_metadata(actors[0], stranger)
        begin = functools.partial(contract_ray.Transfer, manager, crew)
        for version in range(3):
            # At once and in both directions, and one object to several actors.
            ways = [(0, 1), (2, 3), (1, 0), (0, 2), (0, 3)]
            first = [begin(actors[a], actors[b], f"object{version}") for a, b in ways[:2]]
            for transfer in first:
                transfer.begin(buffers=version == 1)
            for transfer in first:
                self.assertEqual(transfer.end(), [None, True])
            for a, b in ways[2:]:
                transfer = begin(actors[a], actors[b], f"object{version}")
                transfer.begin()
                self.assertEqual(transfer.end(), [None, True], (a, b, version))

    def test_a_transfer_that_ray_gives_up(self):
        crew, manager, actors = self.group()
        meta = crew.call_some([0], "extract", ["lost"])[0]
        about = manager.get_communicator_metadata(actors[0], actors[1])
        crew.send([1], "receive alone", [("lost", meta, about)])  # the other never sends
        time.sleep(0.2)
        crew.send([1], "abort", [("lost", about)])
        answers = crew.collect([1, 1], raises=False)
        self.assertIn("Ray has given up the transfer from rank 0 to rank 1", str(answers))
        # Where it had not begun it does not begin any more; and the group goes on.
        crew.call_some([0], "abort", [("lost", about)])
        crew.send([0], "send", [("lost", meta, about)])
        with self.assertRaisesRegex(errors.AbortedError, "given up"):
            crew.collect([0])
        transfer = contract_ray.Transfer(manager, crew, actors[0], actors[1], "next")
        transfer.begin()
        self.assertEqual(transfer.end(), [None, True])

    def test_a_model_in_shards(self):
        crew, _, _ = self.group(TRAINERS + SERVERS, "weights")
        for version in range(3):
            crew.call("move", version)


class Faults(Actors):
    def test_a_death(self):
        crew, manager, actors = self.group(doomed=(0,))
        # They know each other: who dies while UCX connects to it is "no path" instead.
        transfer = contract_ray.Transfer(manager, crew, actors[0], actors[1], "first")
        transfer.begin()
        self.assertEqual(transfer.end(), [None, True])
        meta = crew.call_some([0], "extract", ["lost"])[0]
        about = manager.get_communicator_metadata(actors[0], actors[1])
        crew.send([1], "receive alone", [("lost", meta, about)])
        crew.send([0], "die", [None])
        started = time.monotonic()
        with self.assertRaisesRegex(errors.PeerDiedError, "rank 0"):
            crew.collect([1])
        self.assertLess(time.monotonic() - started, ranks.SOON)
        # Those who are left make a group again.
        from crossmesh.adapters import ray as adapter

        adapter.create_group(actors[1:], timeout=ranks.TIMEOUT)
        transfer = contract_ray.Transfer(manager, crew, actors[3], actors[1], "next")
        transfer.begin()
        self.assertEqual(transfer.end(), [None, True])


class Contract(unittest.TestCase):
    def test_without_ray(self):
        if INSTALLED:
            self.skipTest("Ray is installed")
        code = "import crossmesh.adapters.ray as a\ntry: a.register()\nexcept ImportError as error: print(error)"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertIn("crossmesh.adapters.ray needs a Ray", result.stdout, result.stderr)


class RealRay(unittest.TestCase):
    """In a process of its own, as Ray keeps threads."""

    def test_the_contract_is_rays(self):
        from ray.experimental import TensorTransportManager, register_tensor_transport
        from ray.experimental.rdt import tensor_transport_manager, util

        for name, method in inspect.getmembers(contract_ray.TensorTransportManager, inspect.isroutine):
            if not name.startswith("__"):
                other = inspect.signature(getattr(TensorTransportManager, name))
                self.assertEqual(list(inspect.signature(method).parameters), list(other.parameters), name)
        self.assertEqual(
            contract_ray.TensorTransportManager.__abstractmethods__, TensorTransportManager.__abstractmethods__
        )
        self.assertEqual(
            list(inspect.signature(contract_ray.register_tensor_transport).parameters),
            list(inspect.signature(register_tensor_transport).parameters),
        )
        for name in ("CommunicatorMetadata", "TensorTransportMetadata"):
            ours, theirs = getattr(contract_ray, name), getattr(tensor_transport_manager, name)
            self.assertEqual(list(inspect.signature(ours).parameters), list(inspect.signature(theirs).parameters))
        self.assertIsInstance(util.transport_manager_info, dict)

    def start(self):
        """The adapter, and Ray."""
        # A busy machine takes longer to start Ray's processes, and other programs may use most of its memory.
        os.environ.update(
            RAY_gcs_server_port_wait_time_s="100", RAY_worker_register_timeout_seconds="180",
            RAY_memory_monitor_refresh_ms="0",
        )
        import ray

        from crossmesh.adapters import ray as adapter

        adapter.register()
        # Ray's sockets need a short path, and nothing is to be written to the user's home.
        folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        os.environ.update(PYTHONPATH=os.pathsep.join(sys.path), RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
        ray.init(
            num_cpus=3, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20, _temp_dir=folder,
            _node_ip_address="127.0.0.1",
        )  # fmt: skip
        self.addCleanup(ray.shutdown)
        return adapter, ray

    def test_groups_of_different_layouts(self):
        """A model of two trainers (tensor parallelism) goes to three servers, which have all of it by columns."""
        adapter, ray = self.start()

        @ray.remote(enable_tensor_transport=True, num_cpus=0.5)
        class Part:
            def make(self, trains, rank, size):
                self.trains, self.version = trains, 0
                mesh = DeviceMesh("cpu", torch.arange(size), _init_backend=False, _rank=rank)
                self.state = {
                    name: torch_case.make(torch.zeros(shape), mesh, [placement if trains else Shard(len(shape) - 1)])
                    for name, shape, placement, _ in case.weights()
                }

            def move(self, version):
                if not self.version:
                    given = {"src" if self.trains else "dst": self.state}
                    self.transfer = adapter.WeightTransfer(adapter.group_job(), **given)
                self.version = version
                if self.trains:
                    case.train(self.state, version)
                self.transfer.run()
                shapes = {name: shape for name, shape, _, _ in case.weights()}
                return all(
                    torch.equal(
                        torch_case.bits(tensor.to_local()),
                        torch_case.bits(torch_case.shard(case.whole(name, shapes[name], tensor.dtype, version),
                                                         tensor.device_mesh, tensor.placements)),
                    )
                    for name, tensor in self.state.items()
                )  # fmt: skip

        actors = [Part.remote() for _ in range(5)]
        ray.get([actor.make.remote(i < 2, i if i < 2 else i - 2, 2 if i < 2 else 3) for i, actor in enumerate(actors)])
        adapter.create_group(actors, timeout=ranks.TIMEOUT)
        for version in range(1, 4):
            self.assertEqual(ray.get([actor.move.remote(version) for actor in actors]), [True] * 5, version)
        adapter.destroy_group(actors)

    def test_actors(self):
        adapter, ray = self.start()

        @ray.remote(enable_tensor_transport=True, num_cpus=1)
        class Holder:
            @ray.method(tensor_transport="crossmesh")
            def make(self, obj_id):
                return content(obj_id)

            def is_there(self):
                return True

            def check(self, tensors, obj_id):
                return same(tensors, obj_id), adapter.group_job().rank

        actors = [Holder.remote() for _ in range(3)]
        ray.get([actor.is_there.remote() for actor in actors])  # their start may take longer than a group's waits
        adapter.create_group(actors, timeout=ranks.TIMEOUT)
        for version in range(3):
            made = actors[version].make.remote(f"object{version}")
            others = [a for a in range(3) if a != version]
            answers = ray.get([actors[a].check.remote(made, f"object{version}") for a in others])
            self.assertEqual(answers, [(True, a) for a in others])
        adapter.destroy_group(actors)


if __name__ == "__main__":
    sys.exit(unittest.main())
