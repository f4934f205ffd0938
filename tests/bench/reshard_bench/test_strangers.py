#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Strangers at every port of a running job's ranks, which may open 128 files: UCX's magic number with headers that UCX
ends the process over, hellos and announcements without the secret, and 500 connections that say nothing. The job goes
on and its bytes are right. What listens is read from the kernel's tables. And too low a limit of files is a sentence."""
import os
import re
import resource
import selectors
import socket
import struct
import subprocess
import sys
import time

BENCH = os.environ["RESHARD_BENCH"]
JOB = [BENCH, "-n", "2", "--ranks-per-host", "1", "--src-mesh", "1x1", "--dst-mesh", "1x1", "--src-spec", "S0R"]
JOB += ["--dst-spec", "RS0", "--shape", "64x64", "--dtype", "int32", "--validate", "-w", "1"]
MAGIC = struct.pack("<Q", 0xCAFEBABE12345678)
LISTENS = "0A"
STRANGER = "127.0.0.2"  # an address of no rank; the job is on 127.0.0.1 and this machine's other ones
SAYINGS = [
    MAGIC + struct.pack("<BI", 5, 0xFFFFFFFF),  # a message of 4 GiB
    MAGIC + b"\xff" * 64,
    MAGIC + struct.pack("<BI", 30, 2) + b"ab",  # half a request
    MAGIC + struct.pack("<BI", 31, 0x10000000) + bytes(100),
    b"XMB1\2\0\1\0\0\0\0\0\x50\0\0\0" + bytes(80),  # a hello of the bootstrap
    bytes(50),
    struct.pack("<I", 64) + bytes(64),  # a frame of a detector
    b"GET / HTTP/1.0\r\n\r\n",
]


def few_files(count):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def ranks_of(job):
    with open(f"/proc/{job.pid}/task/{job.pid}/children", encoding="ascii") as children:
        return [int(pid) for pid in children.read().split()]


def ports_of(pid):
    """The addresses at which a process listens."""
    sockets, ports = set(), []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            sockets.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as lines:
            for line in list(lines)[1:]:
                words = line.split()
                if words[3] == LISTENS and f"socket:[{words[9]}]" in sockets:
                    address, port = words[1].split(":")
                    raw = b"".join(struct.pack("=I", int(address[i : i + 8], 16)) for i in range(0, len(address), 8))
                    ports.append((socket.inet_ntoa(raw[-4:]), int(port, 16)))
    return ports


def connect_all(ports, each):
    """Begins `each` connections to every port; returns those that were accepted, with their ports."""
    poll, accepted = selectors.DefaultSelector(), []
    for port in ports:
        for _ in range(each):
            stranger = socket.socket()
            stranger.bind((STRANGER, 0))
            stranger.setblocking(False)
            stranger.connect_ex(port)
            poll.register(stranger, selectors.EVENT_WRITE, port)
    for _ in range(5):
        for key, _ in poll.select(0.1):
            poll.unregister(key.fileobj)
            if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                accepted.append((key.fileobj, key.data))
    return accepted, poll


def attack(ports):
    """One round of everything; returns the ports that let nobody in."""
    open_ports = set()
    for saying in SAYINGS:
        accepted, silent = connect_all(ports, 1)
        for stranger, port in accepted:
            open_ports.add(port)
            try:
                stranger.sendall(saying)
            except OSError:
                pass  # it has been dropped
        time.sleep(0.05)
        for stranger, _ in accepted:
            stranger.close()
        for key in list(silent.get_map().values()):
            key.fileobj.close()
    idle, silent = connect_all(ports, 500 // len(ports) + 1)
    time.sleep(0.5)
    for stranger, _ in idle:
        stranger.close()
    for key in list(silent.get_map().values()):
        key.fileobj.close()
    return set(ports) - open_ports


def run(iterations):
    """Attacks a job for as long as it lasts; returns the rounds that were finished while it ran."""
    with subprocess.Popen(JOB + ["-i", str(iterations)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          preexec_fn=few_files(128)) as job:
        rounds = 0
        ports = {}
        while job.poll() is None and len(ports) < 2:
            time.sleep(0.05)
            try:
                # Each rank has the detector's port, and UCX's.
                found = {pid: ports_of(pid) for pid in ranks_of(job)}
                ports = {pid: its for pid, its in found.items() if len(its) >= 2}
            except (FileNotFoundError, ProcessLookupError):
                continue
        while job.poll() is None:
            shut = attack([port for its in ports.values() for port in its])
            if job.poll() is None:
                rounds += 1
                assert all(shut & set(its) for its in ports.values()), f"UCX's ports are open: {ports}, shut: {shut}"
        output = job.stdout.read()
    assert job.returncode == 0, f"status {job.returncode} after {rounds} rounds:\n{output}"
    assert re.search(r"Out of bounds values : 0 OK", output), output
    return rounds


def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    iterations = 2000
    while (rounds := run(iterations)) == 0 and iterations < 1000000:
        iterations *= 4
    assert rounds > 0, "no job lasted for a round"
    few = subprocess.run(JOB + ["-i", "1"], capture_output=True, text=True, preexec_fn=few_files(24), check=False)
    assert few.returncode == 1, f"status {few.returncode}: {few.stderr}"
    assert re.search(r"open files to start, and 24 are allowed", few.stderr + few.stdout), few.stderr
    print(f"{rounds} rounds of strangers: every byte is right; 24 files are too few, and a sentence says so")


if __name__ == "__main__":
    sys.exit(main())
