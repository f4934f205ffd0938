# SPDX-License-Identifier: Apache-2.0
"""crossmesh.jax against the whole arrays, bit for bit, on processes of two CPU devices each."""

import collections
import os
import subprocess
import sys
import time
import unittest

import ranks

PROCESSES, DEVICES, CALLS, TREE = 3, 2, 210, 5  # more than 1,000 pairs
SIZES = [(1,), (2,), (3,), (4,), (6,), (2, 2), (2, 3), (3, 2), (1, 2, 2), (2, 1, 3)]
DTYPES = ("float32", "bfloat16", "int8", "bool", "int32", "uint16", "complex64", "float8_e4m3fn")


def join(rank, port, processes=PROCESSES, devices=DEVICES):
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    assert jax.device_count() == processes * devices
    return jax


def leave(jax):
    """Together: JAX ends the processes that find the first one, whose service they use, gone before them."""
    jax.distributed.shutdown()


def random_sharding(jax, numpy, random, shape):
    """Any mesh of any devices, in any order, and what of it fits the shape; uneven shards JAX does not have."""
    devices = numpy.array(jax.devices())
    if random.random() < 0.1:
        return jax.sharding.SingleDeviceSharding(random.choice(devices))
    sizes = SIZES[random.integers(len(SIZES))]
    chosen = random.choice(devices, size=int(numpy.prod(sizes)), replace=False)
    names = [f"axis{i}" for i in range(len(sizes))]
    mesh = jax.sharding.Mesh(chosen.reshape(sizes), names)
    free, entries = list(random.permutation(len(sizes))), []
    for extent in shape:
        axes, parts = [], 1
        while free and random.random() < 0.6 and extent % (parts * sizes[free[-1]]) == 0:
            parts *= sizes[free[-1]]
            axes.append(names[free.pop()])
        entries.append(tuple(axes) or None)
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*entries))


def make(jax, whole, sharding):
    """The array where this process has a part of it, else what describes it."""
    if sharding.addressable_devices:
        return jax.make_array_from_callback(whole.shape, sharding, whole.__getitem__)
    return jax.ShapeDtypeStruct(whole.shape, whole.dtype, sharding=sharding)


def check(numpy, after, whole, sharding, what):
    assert after.shape == whole.shape and after.dtype == whole.dtype and after.sharding == sharding, what
    shards = getattr(after, "addressable_shards", [])
    assert len(shards) == len(sharding.addressable_devices), what
    for shard in shards:
        mine = numpy.ascontiguousarray(numpy.asarray(shard.data))
        assert mine.tobytes() == numpy.ascontiguousarray(whole[shard.index]).tobytes(), what


def random_trees(rank, port):
    jax = join(rank, port)
    import ml_dtypes
    import numpy

    import crossmesh.jax

    started = time.monotonic()
    random = numpy.random.default_rng(20)
    seen = collections.Counter()
    for call in range(CALLS):
        tree, targets, wholes = {}, {}, {}
        for name in "abcde"[:TREE]:
            shape = tuple(int(e) for e in random.choice([1, 2, 4, 6, 12, 24], size=random.integers(0, 4)))
            dtype = random.choice(DTYPES)
            dtype = numpy.dtype(getattr(ml_dtypes, dtype, None) or dtype)
            count = int(numpy.prod(shape)) * dtype.itemsize
            raw = random.integers(0, 2 if dtype == bool else 256, size=count, dtype=numpy.uint8)
            wholes[name] = raw.view(dtype).reshape(shape)
            tree[name] = make(jax, wholes[name], random_sharding(jax, numpy, random, shape))
            targets[name] = random_sharding(jax, numpy, random, shape)
            common = tree[name].sharding.device_set & targets[name].device_set
            seen["devices in both" if common else "no device in both"] += 1
            seen["cut"] += not (tree[name].sharding.is_fully_replicated and targets[name].is_fully_replicated)
        moved = crossmesh.jax.reshard(tree, targets)
        for name, after in moved.items():
            what = f"call {call}, process {rank}, {name}: {tree[name].sharding} -> {targets[name]}"
            check(numpy, after, wholes[name], targets[name], what)
            if after.is_fully_addressable if hasattr(after, "is_fully_addressable") else False:
                assert jax.device_get(after).tobytes() == wholes[name].tobytes(), what
    if rank == 0:
        print(f"{CALLS * TREE} pairs in {time.monotonic() - started:.1f} s, of which {dict(sorted(seen.items()))}")
    assert min(seen[kind] for kind in ("devices in both", "no device in both", "cut")) > CALLS * TREE // 20, seen
    crossmesh.jax.shutdown()
    leave(jax)


def special_cases(rank, port):
    jax = join(rank, port)
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import crossmesh.jax
    from crossmesh import errors

    devices = jax.devices()
    first = NamedSharding(Mesh(devices[:2], "x"), PartitionSpec("x"))
    last = NamedSharding(Mesh(devices[-2:], "x"), PartitionSpec(None, "x"))
    whole = numpy.arange(48.0, dtype=numpy.float32).reshape(6, 8)
    x = make(jax, whole, first)
    # What JAX itself says to this.
    if isinstance(x, jax.Array):
        try:
            jax.device_put(x, last).block_until_ready()
            raise AssertionError("JAX can do this now")
        except (ValueError, NotImplementedError, RuntimeError) as error:
            assert str(error)
    y = crossmesh.jax.device_put(x, last)
    check(numpy, y, whole, last, "device_put")
    # Leaves that are no jax.Array, one that stays, and one sharding for all.
    tree = crossmesh.jax.reshard({"x": y, "w": whole, "l": [x]}, last)
    assert tree["x"] is y
    check(numpy, tree["w"], whole, last, "a NumPy array")
    check(numpy, tree["l"][0], whole, last, "in a list")
    number = crossmesh.jax.device_put(3, NamedSharding(last.mesh, PartitionSpec()))
    assert all(int(s.data) == 3 for s in number.addressable_shards)
    # Wrong input: one sentence, on all processes, and the job goes on.
    for bad, text in (
        (lambda: crossmesh.jax.reshard([x, x], [last]), "1 shardings for 2 arrays"),
        (lambda: crossmesh.jax.device_put(jax.ShapeDtypeStruct((6, 8), whole.dtype), last), "no sharding"),
        (lambda: crossmesh.jax.device_put(jax.ShapeDtypeStruct((6, 8), whole.dtype, sharding=first), last),
         "but this process gave a ShapeDtypeStruct" if rank == 0 else "rank "),
    ):  # fmt: skip
        try:
            bad()
            raise AssertionError(f"not refused: {text}")
        except errors.CrossmeshError as error:
            assert text in str(error), (text, error)
    check(numpy, crossmesh.jax.device_put(x, last), whole, last, "after refusals")
    crossmesh.jax.shutdown()
    leave(jax)


def one_process(rank):
    """All devices in one process, without jax.distributed."""
    jax = join(rank, 0, processes=1, devices=8)
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import crossmesh.jax

    # An array's memory is lent, not copied.
    for dtype in (jax.numpy.float32, jax.numpy.bfloat16, jax.numpy.int8):
        array = jax.numpy.arange(12, dtype=dtype).reshape(3, 4)
        buffer = crossmesh.Buffer.of(array)
        assert (buffer.address, buffer.nbytes) == (array.unsafe_buffer_pointer(), array.nbytes), dtype
    devices = numpy.array(jax.devices())
    src = NamedSharding(Mesh(devices[:4].reshape(2, 2), ("x", "y")), PartitionSpec("x", "y"))
    dst = NamedSharding(Mesh(devices[2:], "z"), PartitionSpec(None, "z"))
    whole = numpy.arange(48 * 12, dtype=numpy.int32).reshape(48, 12)
    for _ in range(3):
        x = jax.device_put(whole, src)
        y = crossmesh.jax.device_put(x, dst)
        assert (jax.device_get(y) == whole).all() and y.sharding == dst
        assert (jax.device_get(jax.jit(lambda a: a * 2)(y)) == 2 * whole).all()
        whole = whole + 1
    crossmesh.jax.shutdown()


class Reshard(unittest.TestCase):
    def test_random_trees(self):
        ranks.run(PROCESSES, random_trees, ranks.free_port(), timeout=8 * ranks.TIMEOUT)

    def test_special_cases(self):
        ranks.run(PROCESSES, special_cases, ranks.free_port())

    def test_a_program_that_does_not_shut_down_ends_silently(self):
        program = """
import jax, numpy, crossmesh.jax
jax.config.update("jax_num_cpu_devices", 4)
first, second = (jax.sharding.NamedSharding(jax.sharding.Mesh(numpy.array(jax.devices()[a:a + 2]), "x"),
                                            jax.sharding.PartitionSpec("x")) for a in (0, 2))
crossmesh.jax.device_put(jax.device_put(numpy.arange(8.0), first), second)
keys = crossmesh.jax.device_put(jax.device_put(jax.random.split(jax.random.key(1), 4), first), second)
assert (jax.random.key_data(keys) == jax.random.key_data(jax.random.split(jax.random.key(1), 4))).all()
print("moved")
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=ranks.TIMEOUT,
                              env={**os.environ, "JAX_PLATFORMS": "cpu"})  # fmt: skip
        self.assertEqual((done.returncode, done.stdout), (0, "moved\n"), done.stderr)
        self.assertNotIn("Exception ignored", done.stderr)

    def test_one_process(self):
        ranks.run(1, one_process)


if __name__ == "__main__":
    sys.exit(unittest.main())
