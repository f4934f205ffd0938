# SPDX-License-Identifier: Apache-2.0
"""The guest's kernel: Debian's own, fetched with apt, unpacked into the cache and never installed.

Of the package (70 MB) the cache keeps the kernel as an ELF file and the few modules that a guest loads. An initramfs of
these, busybox and `inside/init` is put together for every boot: that takes milliseconds, and none can be out of date.
"""
import contextlib
import fcntl
import json
import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time

# What a guest needs, in the order of loading; what these depend on is found. crc32_generic is asked for by rdma_rxe
# through the kernel's crypto layer, which no dependency tells.
MODULES = ["virtio_pci", "virtio_console", "virtio_net", "9pnet_virtio", "9p", "overlay", "crc32_generic", "rdma_rxe",
           "ib_uverbs", "rdma_ucm", "veth", "sch_netem"]
BUSYBOX = "/bin/busybox"
HERE = os.path.dirname(os.path.abspath(__file__))


class GuestError(Exception):
    """A sentence about what kept a guest from running."""


def say(text):
    print(f"guest: {text}", file=sys.stderr, flush=True)


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "crossmesh", "guest")


@contextlib.contextmanager
def locked(folder):
    """Only one process at a time changes the cache."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def output_of(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as problem:
        raise GuestError(f"{command[0]}: {problem.strerror}") from problem
    if done.returncode != 0:
        raise GuestError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def newest_package():
    """The package that Debian's meta package stands for today: its name holds the kernel's version."""
    listing = output_of("apt-cache", "depends", "linux-image-amd64")
    found = re.search(r"Depends: (linux-image-[0-9]\S*-amd64)", listing)
    if found is None:
        raise GuestError("apt knows no linux-image-amd64; run apt-get update")
    return found.group(1)


def download(folder):
    """Downloads the newest kernel's package; returns the package's name and the path of its file."""
    package = newest_package()
    say(f"downloading {package} (about 70 MB, once)")
    as_root = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    done = subprocess.run(["apt-get", "download", "-q", *as_root, package], cwd=folder, capture_output=True, text=True,
                          check=False)
    files = [name for name in os.listdir(folder) if name.endswith(".deb")]
    if done.returncode != 0 or not files:
        raise GuestError(f"apt-get download {package}: {done.stderr.strip()}")
    return package, os.path.join(folder, files[0])


def fetch(folder):
    """Downloads, once more with a new index of packages where that may help."""
    try:
        return download(folder)
    except GuestError as problem:
        if os.geteuid() != 0:
            raise
        say(f"{problem}; trying again after apt-get update")
    subprocess.run(["apt-get", "update", "-qq"], check=False)
    return download(folder)


def unpack(package_file, folder):
    """Kernel and modules of a package, below folder; returns the kernel's path, and {module: path}, where the path is
    None for what the kernel has built in."""
    kernel, modules = None, {}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package_file], stdout=subprocess.PIPE) as unpacker:
        with tarfile.open(fileobj=unpacker.stdout, mode="r|") as archive:
            for member in archive:
                name = os.path.basename(member.name)
                if name == "modules.builtin":
                    paths = archive.extractfile(member).read().decode().split()
                    modules.update((module_name(os.path.basename(path)[:-3]), None) for path in paths)
                if not member.isfile() or not (name.endswith(".ko") or name.startswith("vmlinuz-")):
                    continue
                path = os.path.join(folder, name)
                with open(path, "wb") as file:
                    shutil.copyfileobj(archive.extractfile(member), file)
                if name.endswith(".ko"):
                    modules[module_name(name[:-3])] = path
                else:
                    kernel = path
    if kernel is None or unpacker.returncode != 0:
        raise GuestError(f"{package_file} holds no kernel")
    return kernel, modules


def module_name(text):
    return text.replace("-", "_")


def load_order(modules):
    """The modules to load, each after those it depends on (a field of the module's own file)."""
    order = []

    def visit(name):
        if name in order:
            return
        if name not in modules:
            raise GuestError(f"the kernel package has no module {name}")
        if modules[name] is None:
            return
        with open(modules[name], "rb") as file:
            depends = re.search(rb"\0depends=([^\0]*)\0", file.read())
        for other in filter(None, depends.group(1).decode().split(",") if depends else []):
            visit(module_name(other))
        order.append(name)

    for wanted in MODULES:
        visit(wanted)
    return order


def elf_of(image):
    """The ELF file inside a bzImage: qemu enters it directly, which saves the guest from unpacking it (2 s when the
    processor is emulated). See Documentation/arch/x86/boot.rst for the header."""
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    try:
        return lzma.LZMADecompressor().decompress(image[start:start + length])
    except lzma.LZMAError:
        return image  # packed in another way: qemu boots that too, the guest unpacks it


def build(kernels):
    """Makes a kernel's folder below kernels: vmlinux, modules and a description of them; returns its path."""
    with tempfile.TemporaryDirectory(dir=kernels, prefix=".") as scratch:
        package, package_file = fetch(scratch)
        say("unpacking the kernel")
        kernel, modules = unpack(package_file, scratch)
        made = os.path.join(scratch, "made")
        os.mkdir(made)
        order = load_order(modules)
        for name in order:
            shutil.copyfile(modules[name], os.path.join(made, name + ".ko"))
        with open(kernel, "rb") as file, open(os.path.join(made, "vmlinux"), "wb") as out:
            out.write(elf_of(file.read()))
        with open(os.path.join(made, "kernel.json"), "w", encoding="ascii") as file:
            json.dump({"wanted": MODULES, "order": order}, file)
        folder = os.path.join(kernels, package)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(made, folder)
        return folder


def description(folder):
    """What build() wrote about a folder; None when it is missing or was made for other modules."""
    try:
        with open(os.path.join(folder, "kernel.json"), encoding="ascii") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if found.get("wanted") == MODULES else None


def prepare(renew=False):
    """The folder of a kernel that is ready to boot. A kernel in the cache is good enough, unless the newest is wanted."""
    kernels = os.path.join(cache_folder(), "kernels")
    with locked(kernels):
        usable = [entry.path for entry in os.scandir(kernels) if entry.is_dir() and description(entry.path)]
        if usable and not renew:
            return max(usable, key=os.path.getmtime)
        if usable and os.path.join(kernels, newest_package()) in usable:
            return os.path.join(kernels, newest_package())
        started = time.monotonic()
        folder = build(kernels)
        say(f"kernel ready after {time.monotonic() - started:.0f} s in {folder}")
        for entry in os.scandir(kernels):  # older ones, and what a killed preparation left
            if entry.is_dir() and entry.path != folder:
                shutil.rmtree(entry.path)
        return folder


def archive_entry(name, mode, content=b""):
    """One entry of a cpio archive in the "newc" format, which the kernel reads."""
    path = name.encode() + b"\0"
    fields = [0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0]
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
    return head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4)


def write_initramfs(kernel_folder, path):
    """init, busybox and the modules: all that is needed to reach the host's files."""
    order = description(kernel_folder)["order"]
    if not os.path.exists(BUSYBOX):
        raise GuestError(f"no {BUSYBOX}; install busybox-static")
    with open(path, "wb") as out:
        for folder in ("bin", "dev", "proc", "sys", "host", "changes", "root", "modules"):
            out.write(archive_entry(folder, 0o040755))
        for name, mode, source in [("init", 0o100755, os.path.join(HERE, "inside", "init")),
                                   ("bin/busybox", 0o100755, BUSYBOX),
                                   *((f"modules/{m}.ko", 0o100644, os.path.join(kernel_folder, m + ".ko")) for m in order)]:
            with open(source, "rb") as file:
                out.write(archive_entry(name, mode, file.read()))
        out.write(archive_entry("modules/order", 0o100644, "".join(m + "\n" for m in order).encode()))
        out.write(archive_entry("TRAILER!!!", 0))
