# SPDX-License-Identifier: Apache-2.0
"""The package in one process: importing, meshes, layouts, plans, buffers, errors."""

import ctypes
import gc
import json
import os
import pickle
import subprocess
import sys
import unittest
import xml.dom.minidom

import crossmesh
from crossmesh import Buffer, Job, Layout, Mesh, Network, Plan, Reshard, TensorSpec, buffers, errors

try:
    import numpy
except ImportError:
    numpy = None


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )


class Importing(unittest.TestCase):
    def test_it_is_quick_and_brings_no_framework(self):
        # Processor time, which other programs on the machine do not lengthen.
        code = (
            "import sys, time; t = time.process_time(); import crossmesh; t = time.process_time() - t;"
            "print(t, *[m for m in ('numpy', 'torch', 'jax') if m in sys.modules])"
        )
        runs = [python(code).stdout.split() for _ in range(3)]
        self.assertEqual({len(run) for run in runs}, {1}, runs)
        print(f"import crossmesh: {min(float(run[0]) for run in runs) * 1e3:.1f} ms", file=sys.stderr)
        self.assertLess(min(float(run[0]) for run in runs), 0.3)

    def test_a_missing_library_is_named(self):
        result = python("import crossmesh; crossmesh.Mesh(2)", CROSSMESH_LIBRARY="/nowhere/lib.so")
        self.assertIn("LibraryNotFoundError", result.stderr)
        self.assertIn("/nowhere/lib.so", result.stderr)

    def test_a_foreign_library_is_named(self):
        result = python("import crossmesh; crossmesh.Mesh(2)", CROSSMESH_LIBRARY="libm.so.6")
        self.assertIn("libm.so.6 has no function xm_mesh_create", result.stderr)


class Layouts(unittest.TestCase):
    def test_meshes(self):
        mesh = Mesh((2, 4), range(8, 16))
        self.assertEqual(mesh, Mesh.parse("2x4", "8-15"))
        self.assertEqual(hash(mesh), hash(Mesh.parse("2x4", None, 8)))
        self.assertNotEqual(mesh, Mesh((4, 2), range(8, 16)))
        self.assertEqual((mesh.position(13), mesh.position(7), 13 in mesh), (5, None, True))
        self.assertEqual(repr(Mesh(2)), "Mesh((2,), ranks=[0, 1])")
        for bad, text in (
            (lambda: Mesh((2, 2), [0, 1, 2]), "has 4 ranks, not 3"),
            (lambda: Mesh((2,), [5, 5]), "5"),
            (lambda: Mesh((0,), []), "axis 0"),
            (lambda: Mesh.parse("2y"), "2y"),
        ):
            with self.assertRaises(errors.InputError) as caught:
                bad()
            self.assertIn(text, str(caught.exception))

    def test_layouts(self):
        layout = Layout(Mesh((2, 2)), "S01R", (7, 3), "chunk")
        self.assertEqual([layout.tile_shape(r) for r in range(5)], [(2, 3), (2, 3), (2, 3), (1, 3), None])
        self.assertEqual(layout.tile(3), (slice(6, 7), slice(0, 3)))
        self.assertEqual((layout.tile_bytes(0, 4), layout.tile_bytes(9, 4)), (24, 0))
        self.assertEqual(layout.cuts(0), (0, 2, 4, 6, 7))
        explicit = Layout(Mesh(3), "S0R", (48, 2), cuts=[[0, 32, 40, 48], None])
        self.assertEqual([explicit.tile(r)[0] for r in range(3)], [slice(0, 32), slice(32, 40), slice(40, 48)])
        self.assertEqual(Layout(Mesh(2), "", ()).tile(1), ())
        for bad, text in (
            (lambda: Layout(Mesh(2), "S0", (3,)), "3"),
            (lambda: Layout(Mesh(2), "S1", (4,)), "axis 1"),
            (lambda: Layout(Mesh(2), "S0R", (4,)), "2 dimensions"),
            (lambda: Layout(Mesh(2), "S0", (4,), "chunky"), "chunk"),
            (lambda: Layout(Mesh(2), "S0", (4,), cuts=[[0, 4]]), "3 cuts, not 2"),
            (lambda: Layout(Mesh(2), "S0", (4,), cuts=[]), "cuts of 0 dimensions"),
            (lambda: Layout(Mesh(2), "S0", (4,), cuts=[[0, 5, 4]]), "5"),
            (lambda: layout.cuts(2), "dimension 2"),
        ):
            with self.assertRaises(errors.InputError) as caught:
                bad()
            self.assertIn(text, str(caught.exception))


    def test_layouts_as_text_and_pictures(self):
        chunk = Layout(Mesh((2, 2)), "S01R", (7, 3), "chunk")
        self.assertIn("rank 3: [6:7, 0:3]", str(chunk))
        self.assertIn("and 32 more", str(Layout(Mesh(64), "S0", (64,))))
        for layout, cells, texts in (
            (chunk, 4, ("2:4", "0:3", "dimension 0 × dimension 1")),
            (Layout(Mesh((2, 4), range(8, 16)), "S0RS1", (4, 5, 8)), 8, ("dimension 0 × dimension 2", "13", "6:8")),
            (Layout(Mesh((2, 2, 2)), "S0S1S2", (2, 2, 2)), 4, ("cut in dimension 2 as well", "6, 7")),
            (Layout(Mesh((2, 2)), "RS1", (4, 4)), 2, ("0, 2", "1, 3")),
            (Layout(Mesh(8), "RR", (4, 4)), 1, ("0, 1, 2, 3 …",)),
            (Layout(Mesh(64), "S0", (64,)), 16, ("not all parts are shown",)),
            (Layout(Mesh(2), "S0", (1,), "chunk"), 2, ("1:1",)),
            (Layout(Mesh(2, [3, 5]), "S0", (2,), cuts=[[0, 0, 2]]), 2, (">ranks 3<", ">ranks 5<")),
            (Layout(Mesh(2), "", ()), 1, ("a scalar", "0, 1")),
        ):
            picture = xml.dom.minidom.parseString(layout._repr_svg_())
            found = [r for r in picture.getElementsByTagName("rect") if r.getElementsByTagName("title")]
            self.assertEqual(len(found), cells, layout)
            for text in texts:
                self.assertIn(text, picture.toxml(), layout)


def make_plan(**options):
    src = Layout(Mesh((2, 2)), "S01R", (64, 64))
    dst = Layout(Mesh((2, 2), range(4, 8)), "RS01", (64, 64))
    return Plan(TensorSpec(src, dst, 32, "w"), Network([0] * 4 + [1] * 4), **options)


class Plans(unittest.TestCase):
    def test_what_it_says(self):
        plan = make_plan()
        self.assertEqual((plan.bytes, plan.net_bytes, plan.ranks), (16384, 16384, 8))
        self.assertEqual(len(plan.digest), 32)
        self.assertEqual(plan.digest, make_plan().digest)
        self.assertNotEqual(plan.digest, make_plan(chunk_bytes=64).digest)
        self.assertGreaterEqual(plan.makespan, plan.bound)
        plan.verify()
        for line in ("16384 bytes in 1 tensors", "rank 0 -> rank", plan.digest):
            self.assertIn(line, str(plan))
        document = json.loads(plan.to_json())
        self.assertEqual((document["digest"], document["tensors"][0]["name"]), (plan.digest, "w"))
        self.assertEqual(plan.as_dict(), document)

    def test_hops_are_what_is_simulated(self):
        plan = make_plan()
        hops = plan.hops()
        self.assertEqual(sum(hop.bytes for hop in hops), 16384)
        self.assertAlmostEqual(max(hop.end for hop in hops), plan.makespan)
        self.assertTrue(all(hop.sender < 4 <= hop.receiver and hop.start < hop.end for hop in hops))
        self.assertEqual(len(plan.hops("fair")), len(hops))

    def test_pictures_are_well_formed(self):
        one_host = Network([0] * 8)
        spec = make_plan().tensors
        nothing = TensorSpec(Layout(Mesh(1), "R", (4,)), Layout(Mesh(1), "R", (4,)), 8)
        for plan in (make_plan(), Plan(spec, one_host), Plan(nothing, one_host)):
            picture = xml.dom.minidom.parseString(plan._repr_svg_())
            bars = [r for r in picture.getElementsByTagName("rect") if r.getElementsByTagName("title")]
            self.assertEqual(bool(bars), bool(plan.hops()))
            self.assertIn("bound", picture.toxml())

    def test_a_large_plan_is_no_large_picture(self):
        src = Layout(Mesh((32, 8)), "S01R", (4096, 4096))
        dst = Layout(Mesh((8, 32), range(256, 512)), "S1S0", (4096, 4096))
        tensors = [TensorSpec(src, dst, 16, name) for name in ("a", "b", "c")]
        plan = Plan(tensors, Network([rank // 3 for rank in range(512)]), scheduler="naive")
        self.assertGreater(len(plan.hops()), 4000)
        drawn = plan._repr_svg_()
        self.assertLess(len(drawn), 1 << 20)
        self.assertIn("more", drawn)
        text = xml.dom.minidom.parseString(drawn).documentElement.getElementsByTagName("text")[0].firstChild.data
        ways = [(plan.host_of(hop.sender), plan.host_of(hop.receiver)) for hop in plan.hops()]
        lanes = len({sender for sender, receiver in ways if sender != receiver})
        self.assertEqual("more hosts send" in text, lanes > 64, text)
        self.assertLess(len(str(plan)), 4000)

    def test_bad_input(self):
        plan = make_plan()
        spec, network = plan.tensors[0], plan.network
        other = Layout(spec.dst.mesh, "RS01", (64, 32))
        for bad, text in (
            (lambda: Plan([], network), "at least one"),
            (lambda: Plan(spec, network, strategy="brodcast"), "broadcast"),
            (lambda: Plan(spec, Network([0])), "rank"),
            (lambda: Plan(TensorSpec(spec.src, other, 32), network), "64"),
            (lambda: Plan(TensorSpec(spec.src, spec.dst, 7), network), "7"),
            (lambda: plan.hops("unfair"), "unfair"),
            (lambda: Network([0, 1], egress=[1e9]), "1 entries for 2 hosts"),
            (lambda: Network([0, 2]), "host"),
            (lambda: network.host_of(8), "8"),
        ):
            with self.assertRaises(errors.InputError) as caught:
                bad()
            self.assertIn(text, str(caught.exception))
        with self.assertRaises(errors.CrossmeshError) as caught:
            Network.from_profile("/nowhere.json", [0])
        self.assertIn("/nowhere.json", str(caught.exception))


# A producer of DLPack capsules of which every part can be chosen.
class Producer:
    def __init__(self, versioned, shape, strides=None, bits=32, flags=0, major=1, kind=1, offset=0):
        self.deleted, self.asked = 0, []
        self.memory = (ctypes.c_char * 4096)()
        self.shape = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self.deleter = buffers._DELETER(self.delete)
        tensor = buffers._DLTensor(
            data=ctypes.addressof(self.memory),
            device=buffers._DLDevice(kind, 0),
            ndim=len(shape),
            dtype=buffers._DLDataType(2, bits, 1),
            shape=self.shape,
            strides=self.strides,
            byte_offset=offset,
        )
        deleter = ctypes.cast(self.deleter, ctypes.c_void_p)
        if versioned:
            self.managed = buffers._DLManagedTensorVersioned(
                major=major, deleter=deleter, flags=flags, dl_tensor=tensor
            )
        else:
            self.managed = buffers._DLManagedTensor(dl_tensor=tensor, deleter=deleter)
        self.versioned, self.kind = versioned, kind

    def delete(self, address):
        assert address == ctypes.addressof(self.managed)
        self.deleted += 1

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, **options):
        self.asked.append(options)
        if "max_version" in options and not self.versioned:
            raise TypeError("an old producer")
        new = ctypes.pythonapi.PyCapsule_New
        new.argtypes, new.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
        name = buffers._NEW if self.versioned else buffers._OLD
        self.capsule = new(ctypes.addressof(self.managed), name, None)
        return self.capsule


class Buffers(unittest.TestCase):
    def test_dlpack(self):
        for versioned in (False, True):
            producer = Producer(versioned, (3, 5), (5, 1), offset=16)
            buffer = Buffer.of(producer)
            self.assertEqual(buffer.address, ctypes.addressof(producer.memory) + 16)
            self.assertEqual((buffer.nbytes, buffer.device, buffer.readonly), (60, "cpu", False))
            used = buffers._NEW_USED if versioned else buffers._OLD_USED
            self.assertTrue(buffers._capsule_is(producer.capsule, used))
            with self.assertRaises(errors.InputError):  # a capsule can be used once
                Buffer._of_capsule(producer.capsule)
            self.assertEqual(producer.deleted, 0)
            buffer.release()
            buffer.release()
            del buffer
            gc.collect()
            self.assertEqual(producer.deleted, 1)

    def test_the_deleter_is_called_when_nobody_has_the_buffer(self):
        producer = Producer(True, (4,))
        buffer = Buffer.of(producer)
        del buffer
        gc.collect()
        self.assertEqual(producer.deleted, 1)

    def test_dlpack_that_is_refused_is_deleted_once(self):
        for options, text in (
            ({"shape": (4, 4), "strides": (1, 4)}, "row-major"),
            ({"shape": (4,), "major": 2}, "2.0"),
            ({"shape": (4,), "kind": 8}, "device type 8"),
            ({"shape": (4,), "flags": 2}, "copy"),
        ):
            producer = Producer(True, **options)
            with self.assertRaises(errors.InputError) as caught:
                Buffer.of(producer)
            self.assertIn(text, str(caught.exception))
            self.assertEqual(producer.deleted, 1, text)

    def test_sizes_and_flags(self):
        self.assertEqual(Buffer.of(Producer(True, (), bits=128)).nbytes, 16)
        self.assertEqual(Buffer.of(Producer(True, (5,), bits=4)).nbytes, 3)
        self.assertEqual(Buffer.of(Producer(True, (3, 0), (9, 9))).nbytes, 0)
        self.assertEqual(Buffer.of(Producer(True, (1, 3), (77, 1))).nbytes, 12)
        self.assertTrue(Buffer.of(Producer(True, (4,), flags=1)).readonly)
        device = Producer(True, (4,), kind=2)
        self.assertEqual(Buffer.of(device).device, "cuda")
        self.assertEqual(device.asked[0]["stream"], 1)

    def test_python_s_own_buffers(self):
        data = bytearray(b"abcdef")
        buffer = Buffer.of(data)
        self.assertEqual(ctypes.string_at(buffer.address, buffer.nbytes), b"abcdef")
        self.assertFalse(buffer.readonly)
        self.assertTrue(Buffer.of(b"abc").readonly)
        with self.assertRaises(BufferError):
            data.append(1)  # it is held
        for bad in (memoryview(data)[::2], 17, "text"):
            with self.assertRaises(errors.InputError):
                Buffer.of(bad)

    def test_cuda_arrays(self):
        class Array:
            __cuda_array_interface__ = {
                "shape": (2, 3), "typestr": "<f4", "data": (4096, True), "version": 3, "strides": None,
            }  # fmt: skip

        buffer = Buffer.of(Array())
        self.assertEqual((buffer.address, buffer.nbytes, buffer.device), (4096, 24, "cuda"))
        self.assertTrue(buffer.readonly)
        Array.__cuda_array_interface__["strides"] = (4, 8)
        with self.assertRaises(errors.InputError):
            Buffer.of(Array())

    @unittest.skipIf(numpy is None, "no NumPy")
    def test_numpy(self):
        array = numpy.arange(12, dtype=numpy.int16).reshape(3, 4)
        self.assertEqual((Buffer.of(array).address, Buffer.of(array).nbytes), (array.ctypes.data, 24))
        array.flags.writeable = False
        self.assertTrue(Buffer.of(array).readonly)
        dates = numpy.array(["2026-01-01"], dtype="datetime64[D]")  # DLPack has no such type
        self.assertEqual(Buffer.of(dates).nbytes, 8)
        self.assertEqual(Buffer.of(numpy.array(["abc", "d"])).nbytes, 24)
        with self.assertRaises(errors.InputError):
            Buffer.of(numpy.zeros((3, 4))[:, 1:])


class Alone(unittest.TestCase):
    """A job of one rank does everything that does not need another."""

    def test_a_copy(self):
        src, dst = Layout(Mesh(1), "RR", (8, 8)), Layout(Mesh(1), "RR", (8, 8))
        with Job.local() as job:
            self.assertEqual((job.rank, job.size, job.allgather(b"x")), (0, 1, [b"x"]))
            plan = Plan(TensorSpec(src, dst, 8), job.network())
            data, copy = bytes(range(64)), bytearray(64)
            with Reshard(job, plan, data, copy) as reshard:
                reshard.run()
                self.assertEqual(bytes(copy), data)
                copy[:] = bytes(64)
                request = reshard.post()
                with self.assertRaises(errors.InputError):
                    reshard.post()
                request.wait()
                self.assertTrue(request.test() and request.done)
                self.assertEqual(bytes(copy), data)
                reshard.verify()
                copy[5] ^= 1
                with self.assertRaises(errors.CorruptDataError):
                    reshard.verify()
            with self.assertRaises(errors.InputError):
                reshard.run()
            for bad, text in (
                (lambda: Reshard(job, plan, data, data), "read-only"),
                (lambda: Reshard(job, plan, data, bytearray(63)), "63"),
                (lambda: Reshard(job, plan, data, [copy, copy]), "2 destination buffers"),
                (lambda: Reshard(job, plan, None, copy), "rank 0"),
                (lambda: Reshard(job, make_plan()), "rank 7"),
            ):
                with self.assertRaises(errors.InputError) as caught:
                    bad()
                self.assertIn(text, str(caught.exception))
        with self.assertRaises(errors.InputError):
            job.barrier()
        job.close()

    def test_channels_come_back(self):
        layout = Layout(Mesh(1), "R", (8,))
        with Job.local() as job:
            plan = Plan(TensorSpec(layout, layout, 8), job.network())
            for _ in range(600):  # more than there are channels
                Reshard(job, plan, bytes(8), bytearray(8)).run()
            kept = [Reshard(job, plan, bytes(8), bytearray(8)) for _ in range(254)]
            with self.assertRaises(errors.InputError) as caught:
                Reshard(job, plan, bytes(8), bytearray(8))
            self.assertIn("channels", str(caught.exception))
            kept.pop().close()
            Reshard(job, plan, bytes(8), bytearray(8)).run()

    def test_a_child_is_told(self):
        with Job.local() as job:
            pid = os.fork()
            if pid == 0:
                try:
                    job.barrier()
                except errors.ForkError as error:
                    job.close()  # nothing: it is the parent's
                    os._exit(0 if "child" in str(error) else 2)
                os._exit(1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
            job.barrier()

    def test_the_caller_s_allgather(self):
        calls = []

        def allgather(data):
            calls.append(data)
            return [data]

        with Job.from_allgather(0, 1, allgather) as job:
            job.barrier()
        self.assertTrue(calls)

        def broken(data):
            raise KeyError("the launcher is gone")

        with self.assertRaises(KeyError):
            Job.from_allgather(0, 1, broken)
        with self.assertRaises(errors.InputError) as caught:
            Job.from_allgather(0, 1, lambda data: [data, data])
        self.assertIn("1 ranks", str(caught.exception))
        with self.assertRaises(errors.InputError):
            Job.from_allgather(3, 2, allgather)
        with self.assertRaises(TypeError):
            Job()


class Errors(unittest.TestCase):
    def test_kinds(self):
        for status, kind, base in (
            (-1, errors.InputError, ValueError),
            (-20, errors.ResourceError, Exception),
            (-40, errors.NetworkError, ConnectionError),
            (-60, errors.PeerDiedError, errors.PeerError),
            (-61, errors.DeadlineError, TimeoutError),
            (-62, errors.AbortedError, errors.PeerError),
            (-80, errors.InternalError, errors.CrossmeshError),
            (-81, errors.CorruptDataError, errors.InternalError),
        ):
            error = errors.from_status(status, "a sentence")
            self.assertIs(type(error), kind)
            self.assertIsInstance(error, base)
            again = pickle.loads(pickle.dumps(error))
            self.assertEqual((str(again), again.status, type(again)), ("a sentence", status, kind))

    def test_everything_is_exported(self):
        for name in crossmesh.__all__:
            self.assertTrue(hasattr(crossmesh, name), name)


if __name__ == "__main__":
    sys.exit(unittest.main())
