# SPDX-License-Identifier: Apache-2.0
"""The package's view of the C interface is what the headers say: it is made of them again, and the compiler compares
sizes and numbers."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from crossmesh import _abi, _native, _planner, nccl

try:
    from crossmesh.jax import _xla
except ImportError:
    _xla = None

NUMBERS = {n: v for n, v in vars(_abi).items() if n.startswith(("XM_", "AP_")) and isinstance(v, int)}
SCRIPT = os.path.join(os.environ["SOURCE_DIR"], "scripts", "generate-python-abi")


def source(numbers, structures, headers):
    lines = ["#include <stddef.h>", "#include <stdio.h>"]
    lines += [f'#include "{header}"' for header in headers]
    lines += [f'_Static_assert((int){n} == {v}, "{n}");' for n, v in numbers.items()]
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
        result = compile_it(source(NUMBERS, _abi.STRUCTURES, _abi.HEADERS))
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_nccl_s_too(self):
        numbers = {"NCCL_HANDLE_SIZE": nccl.HANDLE_SIZE, "NCCL_LOG_WARN": nccl.WARN, "NCCL_MEMBERS_MAX": nccl.MEMBERS}
        result = compile_it(source(numbers, nccl.STRUCTURES, nccl.HEADERS))
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_difference_would_be_found(self):
        self.assertIn("XM_MAX_DIMS", compile_it(source({"XM_MAX_DIMS": 1}, (), _abi.HEADERS)).stderr)

        class Short(ctypes.Structure):
            c_name = "ap_planner_pin_t"
            _fields_ = [("first_layer", ctypes.c_int64), ("last_layer", ctypes.c_int), ("shape", ctypes.c_int * 2)]

        self.assertIn("ap_planner_pin_t.first_layer", compile_it(source({}, (Short,), _abi.HEADERS)).stderr)

    @unittest.skipIf(shutil.which("clang") is None, "there is no clang")
    def test_it_is_what_the_headers_make(self):
        made = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
        self.assertEqual(made.returncode, 0, made.stderr)
        with open(os.path.join(os.environ["SOURCE_DIR"], "plugins/python/src/crossmesh/_abi.py")) as file:
            self.assertEqual(file.read(), made.stdout, "build again")

    def test_members_begin_as_the_headers_initialise_them(self):
        alpa, space = _abi.AlpaParams(replicated_penalty=3), _abi.Space()
        self.assertEqual((alpa.struct_size, alpa.replicated_penalty), (ctypes.sizeof(_abi.AlpaParams), 3))
        self.assertEqual((list(alpa.alpha), list(alpa.beta)), ([1, 1, 1, 1], [1, 0.1, 0.1, 0.1]))
        self.assertEqual((list(space.roles), space.recompute, space.one_axis), ([_abi.AP_ROLES_ALL] * _abi.AP_MAX_MESH_RANK, True, False))
        self.assertEqual(_abi.PlannerParams().layering.struct_size, ctypes.sizeof(_abi.Layering))

    def test_every_function_can_be_loaded(self):
        libraries = [(_native.raw, _abi.CROSSMESH), (_planner.lib, _abi.AUTOPAR)]
        for library, table in libraries + ([(_xla.lib, _abi.XLA)] if _xla is not None else []):
            for name in table:
                self.assertTrue(callable(getattr(library, name)), name)

    def test_each_library_has_its_own_last_error(self):
        with self.assertRaisesRegex(_native.from_status(-3, "").__class__, "no-such-model"):
            _planner.lib.ap_profile_load(b"no-such-model", ctypes.c_void_p())


if __name__ == "__main__":
    sys.exit(unittest.main())
