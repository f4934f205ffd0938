# SPDX-License-Identifier: Apache-2.0
"""Transfer: arrays between compiled programs that run at the same time."""

import concurrent.futures
import os
import sys
import time
import unittest

import ranks
from test_jax_reshard import join, leave

RUNS, BATCH, WIDTH = 12, 8, 16


def stages(jax, numpy, first, second):
    """A product in two stages: the first program sends what the second needs."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    one = Mesh(numpy.array(first).reshape(len(first), 1), ("data", "model"))
    two = Mesh(numpy.array(second), ("model",))
    return (NamedSharding(one, PartitionSpec("data", "model")), NamedSharding(two, PartitionSpec(None, "model")))


def put(jax, numpy, whole, sharding):
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def pipeline(rank, port, processes, devices, there_and_back):
    """Many runs; each result is what one device computes."""
    jax = join(rank, port, processes, devices)
    import numpy

    import crossmesh.jax

    everyone = jax.devices()
    half = len(everyone) // 2
    src, dst = stages(jax, numpy, everyone[:half], everyone[half:])
    forth = crossmesh.jax.Transfer((BATCH, WIDTH), numpy.float32, src, dst)
    back = crossmesh.jax.Transfer((BATCH, WIDTH), numpy.float32, dst, src)

    @jax.jit
    def first(x):
        ticket = forth.send(jax.numpy.sin(x))
        return back.receive(after=ticket) if there_and_back else ticket

    @jax.jit
    def second():
        y = forth.receive() * 2
        return back.send(y) if there_and_back else y

    threads = concurrent.futures.ThreadPoolExecutor(1)
    mine = [d.process_index == jax.process_index() for d in (everyone[0], everyone[-1])]
    for run in range(RUNS):
        whole = numpy.random.default_rng(run).normal(size=(BATCH, WIDTH)).astype(numpy.float32)
        # JAX runs small programs inside the call, so two that wait for each other are called by two threads.
        other = threads.submit(second) if mine[1] else None
        if mine[0]:
            sent = first(put(jax, numpy, whole, src))
        if mine[1]:
            got = other.result()
        jax.block_until_ready([*([sent] if mine[0] else []), *([got] if mine[1] else [])])
        if mine[0 if there_and_back else 1]:
            for shard in (sent if there_and_back else got).addressable_shards:
                expected = 2 * numpy.sin(whole)[shard.index]
                numpy.testing.assert_allclose(numpy.asarray(shard.data), expected, rtol=1e-6, err_msg=f"run {run}")
    crossmesh.jax.shutdown_programs()
    leave(jax)


def several_calls(rank, port):
    """Two sends and receives of one transfer in a program, in the order of their tickets; bits of any type."""
    jax = join(rank, port, 2, 2)
    import numpy

    import crossmesh.jax

    everyone = jax.devices()
    src, dst = stages(jax, numpy, everyone[:2], everyone[2:])
    for dtype in (numpy.int8, jax.numpy.bfloat16, numpy.complex64):
        moved = crossmesh.jax.Transfer((4, 6), dtype, src, dst)
        whole = numpy.arange(24).reshape(4, 6).astype(dtype)

        @jax.jit
        def send(x):
            return moved.send(x + x, after=moved.send(x))

        @jax.jit
        def receive():
            x, ticket = moved.receive(ticket=True)
            return x, moved.receive(after=ticket)

        for _ in range(3):
            if rank == 0:
                jax.block_until_ready(send(put(jax, numpy, whole, src)))
            else:
                for got, wanted in zip(receive(), (whole, whole + whole)):
                    for shard in got.addressable_shards:
                        assert numpy.asarray(shard.data).tobytes() == wanted[shard.index].tobytes(), dtype
        moved.close()
    crossmesh.jax.shutdown_programs()
    leave(jax)


def refusals(rank, port):
    jax = join(rank, port, 1, 4)
    import numpy
    from jax.sharding import SingleDeviceSharding

    import crossmesh.jax
    from crossmesh import errors

    everyone = jax.devices()
    src, dst = stages(jax, numpy, everyone[:2], everyone[2:])
    other, _ = stages(jax, numpy, everyone[1:3], everyone[2:])
    for call, text in (
        (lambda: crossmesh.jax.Transfer((4, 6), "int8", other, dst), "both meshes"),
        (lambda: crossmesh.jax.Transfer((4, 6), "int8", SingleDeviceSharding(everyone[0]), dst), "NamedSharding"),
    ):
        try:
            call()
            raise AssertionError(f"not refused: {text}")
        except errors.InputError as error:
            assert text in str(error), error
    moved = crossmesh.jax.Transfer((4, 6), "int8", src, dst)
    try:
        jax.jit(moved.send)(put(jax, numpy, numpy.zeros((4, 6), numpy.int32), src))
        raise AssertionError("another dtype was sent")
    except errors.InputError as error:
        assert "int32[4, 6]" in str(error), error
    receive = jax.jit(moved.receive)
    receive.lower().compile()
    moved.close()
    try:
        jax.block_until_ready(receive())
        raise AssertionError("a closed transfer received")
    except jax.errors.JaxRuntimeError as error:
        assert "the transfer was closed" in str(error), error
    crossmesh.jax.shutdown_programs()


def no_peer(rank, port):
    """The other program never sends: the deadline ends the program, with a sentence."""
    jax = join(rank, port, 1, 4)
    import numpy

    import crossmesh.jax

    everyone = jax.devices()
    src, dst = stages(jax, numpy, everyone[:2], everyone[2:])
    moved = crossmesh.jax.Transfer((4, 6), "int8", src, dst, timeout=2)
    started = time.monotonic()
    try:
        jax.block_until_ready(jax.jit(moved.receive)())
        raise AssertionError("nothing was sent, and it was received")
    except jax.errors.JaxRuntimeError as error:
        assert "DEADLINE" in str(error) or "UNAVAILABLE" in str(error), error
    assert time.monotonic() - started < ranks.SOON
    sys.stdout.flush()
    os._exit(0)  # the job has failed; there is nothing to leave in order


class Program(unittest.TestCase):
    def test_two_processes(self):
        ranks.run(2, pipeline, ranks.free_port(), 2, 2, False, timeout=3 * ranks.TIMEOUT)

    def test_there_and_back_in_one_process(self):
        """Two ranks in one process wait for each other; JAX itself runs only programs of one device at a time together."""
        ranks.run(1, pipeline, 0, 1, 2, True, timeout=3 * ranks.TIMEOUT)

    def test_there_and_back(self):
        ranks.run(2, pipeline, ranks.free_port(), 2, 2, True, timeout=3 * ranks.TIMEOUT)

    def test_several_calls(self):
        ranks.run(2, several_calls, ranks.free_port(), timeout=3 * ranks.TIMEOUT)

    def test_refusals(self):
        ranks.run(1, refusals, 0, timeout=3 * ranks.TIMEOUT)

    def test_no_peer(self):
        ranks.run(1, no_peer, 0, timeout=3 * ranks.TIMEOUT)


if __name__ == "__main__":
    sys.exit(unittest.main())
