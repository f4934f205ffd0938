# SPDX-License-Identifier: Apache-2.0
"""NCCL's network plugin: where it is, and whether NCCL will find it and it works on this machine, without a GPU.

    export NCCL_NET_PLUGIN=$(python3 -m crossmesh.nccl path)    # what belongs to this package
    python3 -m crossmesh.nccl check                             # opens what NCCL_NET_PLUGIN names as NCCL does

`check` prints what the plugin tells NCCL, and sends messages to a second process by the table that NCCL 2.28 uses.
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_size_t, c_ulong, c_void_p
from typing import Any

from . import _native
from .errors import CrossmeshError, InputError, LibraryNotFoundError

HANDLE_SIZE, WARN, MEMBERS = 128, 2, 4
SIZES = (0, 1, 100, 4096, 100_000, 1 << 20, 16 << 20)  # of the messages that are sent on trial
TIMEOUT_S = 60.0

_LOG = CFUNCTYPE(None, c_int, c_ulong, c_char_p, c_int, c_char_p, c_char_p)  # the plugin's lines are made from "%s"
_COMM = POINTER(c_void_p)
_END = CFUNCTYPE(c_int, c_void_p)


class Members(Structure):
    c_name = "nccl_virtual_v9_t"
    _fields_ = [("count", c_int), ("devices", c_int * MEMBERS)]


class Properties(Structure):
    c_name = "nccl_properties_v11_t"
    _fields_ = [
        ("name", c_char_p),
        ("pci_path", c_char_p),
        ("guid", ctypes.c_uint64),
        ("pointers", c_int),
        ("registration_is_global", c_int),
        ("force_flush", c_int),
        ("speed", c_int),
        ("port", c_int),
        ("latency", ctypes.c_float),
        ("max_comms", c_int),
        ("max_receives", c_int),
        ("offload_type", c_int),
        ("offload_version", c_int),
        ("members", Members),
        ("max_p2p_bytes", c_size_t),
        ("max_collective_bytes", c_size_t),
        ("max_multi_request", c_int),
    ]


class Table(Structure):
    """What NCCL 2.28 finds as ncclNetPlugin_v11. Functions that are not called here are addresses."""

    c_name = "nccl_net_v11_t"
    _fields_ = [
        ("name", c_char_p),
        ("init", CFUNCTYPE(c_int, _COMM, ctypes.c_uint64, POINTER(c_int), _LOG, c_void_p)),
        ("devices", CFUNCTYPE(c_int, POINTER(c_int))),
        ("properties", CFUNCTYPE(c_int, c_int, POINTER(Properties))),
        ("listen", CFUNCTYPE(c_int, c_void_p, c_int, c_void_p, _COMM)),
        ("connect", CFUNCTYPE(c_int, c_void_p, c_int, c_void_p, _COMM, _COMM)),
        ("accept", CFUNCTYPE(c_int, c_void_p, _COMM, _COMM)),
        ("register_memory", c_void_p),
        ("register_dmabuf", c_void_p),
        ("deregister_memory", c_void_p),
        ("send", CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p, _COMM)),
        ("receive", CFUNCTYPE(c_int, c_void_p, c_int, _COMM, POINTER(c_size_t), POINTER(c_int), _COMM, _COMM, _COMM)),
        ("flush", c_void_p),
        ("test", CFUNCTYPE(c_int, c_void_p, POINTER(c_int), POINTER(c_int))),
        ("close_send", _END),
        ("close_receive", _END),
        ("close_listen", _END),
        ("device_memory", c_void_p),
        ("receive_consumed", c_void_p),
        ("make_virtual", c_void_p),
        ("finalize", _END),
        ("set_attributes", c_void_p),
    ]


STRUCTURES = (Members, Properties, Table)
HEADERS = ("plugins/nccl/nccl_abi.h",)


def path() -> str:
    """The plugin that stands beside libcrossmesh.so, by its name where the loader finds both; InputError where there is
    none."""
    library = _native.library_path()
    if not os.path.dirname(library):
        return "libnccl-net-crossmesh.so"
    beside = os.path.join(os.path.dirname(os.path.realpath(library)), "libnccl-net-crossmesh.so")
    if not os.path.exists(beside):
        raise InputError(f"there is no {beside}: the target nccl_net, which is installed beside libcrossmesh.so")
    return beside


def open_plugin(entry: str) -> ctypes.CDLL:
    """Opens an entry of NCCL_NET_PLUGIN as NCCL does: as it is, else as libnccl-net-ENTRY.so."""
    tries = [entry] if "/" in entry or entry.startswith("lib") else [entry, f"libnccl-net-{entry}.so"]
    reasons = []
    for name in tries:
        try:
            return ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            reasons.append(str(error))
    raise LibraryNotFoundError(
        f"NCCL_NET_PLUGIN={entry} cannot be opened, and NCCL will use its own sockets: {'; '.join(reasons)}"
    )


class Plugin:
    """The opened plugin, as a communicator of NCCL 2.28 uses it."""

    def __init__(self, entry: str) -> None:
        library = open_plugin(entry)
        try:
            self._table = Table.in_dll(library, "ncclNetPlugin_v11")
        except ValueError:
            raise LibraryNotFoundError(f"NCCL_NET_PLUGIN={entry} has no ncclNetPlugin_v11") from None
        self.lines: list[str] = []
        self._warning = ""
        self._log = _LOG(self._take)
        self._context, traffic_class = c_void_p(), c_int(-1)
        self._call("init", ctypes.byref(self._context), 1, ctypes.byref(traffic_class), self._log, None)

    def _take(self, level: int, _subjects: int, _file: bytes, _line: int, _format: bytes, text: bytes) -> None:
        self.lines.append(text.decode(errors="replace"))
        if level == WARN:
            self._warning = self.lines[-1]

    def _call(self, function: str, *arguments: Any) -> None:
        self._warning = ""
        result = getattr(self._table, function)(*arguments)
        if result != 0:
            raise CrossmeshError(self._warning or f"NET/crossmesh: {function} has ended with {result}")

    @property
    def name(self) -> str:
        name: bytes = self._table.name
        return name.decode()

    def devices(self) -> list[Properties]:
        count = c_int()
        self._call("devices", ctypes.byref(count))
        found = [Properties() for _ in range(count.value)]
        for number, properties in enumerate(found):
            self._call("properties", number, ctypes.byref(properties))
        return found

    def _until(self, function: str, there: c_void_p, *arguments: Any) -> int:
        """Calls until what was asked for is there, as NCCL does: nothing in a plugin waits."""
        deadline = time.monotonic() + TIMEOUT_S
        while not there.value:
            if time.monotonic() > deadline:
                raise CrossmeshError(f"NET/crossmesh: {function} has given nothing for {TIMEOUT_S:.0f} s")
            self._call(function, *arguments)
        return there.value

    def _wait(self, request: int) -> int:
        done, size = c_int(), c_int()
        deadline = time.monotonic() + TIMEOUT_S
        while not done.value:
            if time.monotonic() > deadline:
                raise CrossmeshError(f"NET/crossmesh: a message has not ended for {TIMEOUT_S:.0f} s")
            self._call("test", request, ctypes.byref(done), ctypes.byref(size))
        return size.value

    def send(self, handle: bytes, messages: Sequence[bytes]) -> None:
        """Connects by a handle, and sends messages one after the other."""
        place, comm, offload = ctypes.create_string_buffer(handle, HANDLE_SIZE), c_void_p(), c_void_p()
        self._until("connect", comm, self._context, 0, place, ctypes.byref(comm), ctypes.byref(offload))
        try:
            for message in messages:
                request = c_void_p()
                self._until("send", request, comm, message, len(message), 0, None, None, ctypes.byref(request))
                self._wait(request.value or 0)
        finally:
            self._call("close_send", comm)

    def receive(self, tell: Any, lengths: Sequence[int]) -> list[bytes]:
        """Listens, tells the handle, and receives messages of these lengths at most."""
        handle, listener = ctypes.create_string_buffer(HANDLE_SIZE), c_void_p()
        comm, offload, received = c_void_p(), c_void_p(), []
        self._call("listen", self._context, 0, handle, ctypes.byref(listener))
        try:
            tell(handle.raw)
            self._until("accept", comm, listener, ctypes.byref(comm), ctypes.byref(offload))
            for length in lengths:
                buffer, request = ctypes.create_string_buffer(max(length, 1)), c_void_p()
                data, size, tag, none = c_void_p(ctypes.addressof(buffer)), c_size_t(length), c_int(0), c_void_p()
                self._until("receive", request, comm, 1, ctypes.byref(data), ctypes.byref(size), ctypes.byref(tag),
                            ctypes.byref(none), None, ctypes.byref(request))  # fmt: skip
                length = self._wait(request.value or 0)
                received.append(buffer.raw[:length])
        finally:
            if comm.value:
                self._call("close_receive", comm)
            self._call("close_listen", listener)
        return received

    def close(self) -> None:
        self._call("finalize", self._context)


def _messages() -> list[bytes]:
    """The same in both processes; each byte depends on its place."""
    return [random.Random(size).randbytes(size) for size in SIZES]


def _receive(entry: str) -> None:
    """The second process."""
    plugin, expected = Plugin(entry), _messages()
    received = plugin.receive(lambda handle: print(handle.hex(), flush=True), SIZES)
    for number, (got, wanted) in enumerate(zip(received, expected)):
        if got != wanted:
            raise CrossmeshError(f"message {number} of {len(wanted)} bytes has arrived as {len(got)}, or other ones")
    plugin.close()


def check(entry: str) -> None:
    """Prints what NCCL would find; raises what is wrong."""
    plugin = Plugin(entry)
    for line in plugin.lines:
        print(line)
    for number, device in enumerate(plugin.devices()):
        place = device.pci_path.decode() if device.pci_path else "no PCI device"
        print(f"device {number}: {device.name.decode()}, {device.speed} Mbit/s, {place}")
    del plugin.lines[:]
    command = [sys.executable, "-m", "crossmesh.nccl", "receive", entry]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        handle = other.stdout.readline().strip()
        failure = None
        try:
            if handle:
                plugin.send(bytes.fromhex(handle), _messages())
        except CrossmeshError as error:
            failure = error  # the other process may know better
        told = other.communicate()[1].strip()
    if other.returncode != 0:
        raise CrossmeshError(told or f"the second process has ended with {other.returncode}") from failure
    if failure is not None:
        raise failure
    plugin.close()
    for line in plugin.lines:
        print(line)
    print(f"{len(SIZES)} messages of up to {max(SIZES) >> 20} MiB have come to another process as they were sent")


def main(arguments: Sequence[str]) -> int:
    what = arguments[0] if arguments else ""
    try:
        if what == "path" and len(arguments) == 1:
            print(path())
        elif what == "check" and len(arguments) == 1:
            for entry in (os.environ.get("NCCL_NET_PLUGIN") or "libnccl-net.so").split(","):
                check(entry)
        elif what == "receive" and len(arguments) == 2:
            _receive(arguments[1])
        else:
            print("usage: python3 -m crossmesh.nccl path|check", file=sys.stderr)
            return 2
    except CrossmeshError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
