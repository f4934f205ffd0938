"""The package's prototypes, structures and numbers are those of the headers: the compiler compares them."""

import ctypes
import os
import subprocess
import sys
import tempfile
import unittest

from crossmesh import _native, _planner, _stage_planner, nccl

try:
    from crossmesh.jax import _xla
except ImportError:
    _xla = None

ENUMERATORS = {
    "XM_OK": _native.OK,
    "XM_IN_PROGRESS": _native.IN_PROGRESS,
    "XM_ERR_IO": _native.ERR_IO,
    "XM_ERR_PEER_DIED": -60,
    "XM_ERR_TIMEOUT": _native.ERR_TIMEOUT,
    "XM_ERR_CANCELED": _native.ERR_CANCELED,
    "XM_ERR_CORRUPT": -81,
    "XM_MAX_DIMS": _native.MAX_DIMS,
    "XM_PLAN_DIGEST_SIZE": 33,
    "XM_MAX_AXES": _native.MAX_AXES,
    "XM_SHARING_EXCLUSIVE": 0,
    "XM_SHARING_FAIR": 1,
}
PLANNER_ENUMERATORS = {"AP_SHARD_CFN": 0, "AP_MAX_MESH_RANK": _planner.MAX_MESH_RANK}


def source(prototypes=_native.PROTOTYPES, enumerators=ENUMERATORS, structures=_native.STRUCTURES,
           headers=_native.HEADERS):  # fmt: skip
    lines = ["#include <stddef.h>", "#include <stdio.h>"]
    lines += [f'#include "{header}"' for header in headers]
    lines.append(prototypes)
    lines += [f'_Static_assert({n} == {v}, "{n}");' for n, v in enumerators.items()]
    for kind in structures:
        size = ctypes.sizeof(kind)
        lines.append(f'_Static_assert(sizeof({kind.c_name}) == {size}, "{kind.c_name}");')
        for name, _ in kind._fields_:
            field = getattr(kind, name)
            place = f"offsetof({kind.c_name}, {name}) == {field.offset}"
            size = f"sizeof((({kind.c_name} *)0)->{name}) == {field.size}"
            lines.append(f'_Static_assert({place} && {size}, "{kind.c_name}.{name}");')
    return "\n".join(lines) + "\n"


def compile_it(text):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "abi.c")
        with open(path, "w") as file:
            file.write(text)
        command = [os.environ.get("CC", "cc"), "-std=c17", "-D_GNU_SOURCE", "-fsyntax-only", "-Wall", "-Werror"]
        command += [f"-I{folder}" for folder in os.environ["INCLUDE_DIRS"].split(":")]
        return subprocess.run([*command, path], capture_output=True, text=True)


class Abi(unittest.TestCase):
    def test_the_compiler_agrees(self):
        result = compile_it(source())
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_the_planner_s_too(self):
        text = source(_planner.PROTOTYPES, PLANNER_ENUMERATORS, _planner.STRUCTURES, _planner.HEADERS)
        result = compile_it(text)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_that_of_stages_too(self):
        module = _stage_planner
        result = compile_it(source(module.PROTOTYPES, module.ENUMERATORS, module.STRUCTURES, module.HEADERS))
        self.assertEqual(result.returncode, 0, result.stderr)

    @unittest.skipIf(_xla is None, "there is no jax")
    def test_that_of_the_custom_call_too(self):
        result = compile_it(source(_xla.PROTOTYPES, {}, _xla.STRUCTURES, _xla.HEADERS))
        self.assertEqual(result.returncode, 0, result.stderr)
        for name in _native.by_name(_xla.PROTOTYPES):
            self.assertTrue(callable(getattr(_xla.lib, name)), name)

    def test_nccl_s_too(self):
        numbers = {"NCCL_HANDLE_SIZE": nccl.HANDLE_SIZE, "NCCL_LOG_WARN": nccl.WARN, "NCCL_MEMBERS_MAX": nccl.MEMBERS}
        result = compile_it(source("", numbers, nccl.STRUCTURES, nccl.HEADERS))
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_difference_would_be_found(self):
        wrong = _native.PROTOTYPES.replace("int xm_mesh_axes", "double xm_mesh_axes")
        self.assertIn("xm_mesh_axes", compile_it(source(prototypes=wrong)).stderr)
        self.assertIn("XM_MAX_DIMS", compile_it(source(enumerators={"XM_MAX_DIMS": 1})).stderr)

        class Short(ctypes.Structure):
            c_name = "xm_plan_hop_t"
            _fields_ = [("transfer", ctypes.c_int32), ("sender", ctypes.c_void_p), ("receiver", ctypes.c_int)]

        self.assertIn("xm_plan_hop_t.transfer", compile_it(source(structures=(Short,))).stderr)

    def test_every_function_can_be_loaded(self):
        for name in _native._LINES:
            self.assertTrue(callable(getattr(_native.raw, name)), name)
        for name in _native.by_name(_planner.PROTOTYPES):
            self.assertTrue(callable(getattr(_planner.lib, name)), name)
        for name in _native.by_name(_stage_planner.PROTOTYPES):
            self.assertTrue(callable(getattr(_stage_planner.lib, name)), name)


if __name__ == "__main__":
    sys.exit(unittest.main())
