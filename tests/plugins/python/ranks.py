# SPDX-License-Identifier: Apache-2.0
"""Runs the ranks of a small job as forked processes and collects them."""

import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback

# Seconds that waits of a test may take, and in which a death or Ctrl-C is known to all, without anybody's deadline;
# longer where the machine is slowed down. They are for what hangs: a machine may have much else to do.
TIMEOUT = 120 * float(os.environ.get("CROSSMESH_TEST_TIMEOUT", "1"))
SOON = TIMEOUT / 4

_kept = []


def free_port():
    """A port that stays this test's: as long as the socket here is bound to it, nobody else is given it, and whoever
    asks for it by its number may listen, since all servers set SO_REUSEADDR."""
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", 0))
    _kept.append(probe)
    return probe.getsockname()[1]


def listens(port):
    """Whether somebody on this machine does, at that port."""
    wanted = re.compile(rf"\s*\d+: [0-9A-F]+:{port:04X} [0-9A-F]+:0000 0A ")
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(path):
            with open(path) as file:
                if any(wanted.match(line) for line in file):
                    return True
    return False


def interrupt_once(condition):
    """Sends this process Ctrl-C, half a second after the condition holds: it is waiting by then."""

    def watch():
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, "what was waited for has not come"
            time.sleep(0.005)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


def start(size, main, *args, hosts=1):
    """Forks the ranks; each runs main(rank, *args) and exits with 0 unless that raises. Returns their pids."""
    port = free_port()
    sys.stdout.flush()
    sys.stderr.flush()
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.environ.update(
                    RANK=str(rank),
                    WORLD_SIZE=str(size),
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port),
                    GLOO_SOCKET_IFNAME="lo",
                )
                if hosts > 1:
                    os.environ["XM_HOST"] = f"host{rank * hosts // size}"
                main(rank, *args)
                status = 0
            except BaseException:
                print(f"rank {rank}:", file=sys.stderr)
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        pids.append(pid)
    return pids


def wait(pids, doomed=(), timeout=TIMEOUT):
    """Fails unless every rank that is not doomed ends with 0 in time."""
    deadline = time.monotonic() + timeout
    left, results = dict(enumerate(pids)), {}
    while left and time.monotonic() < deadline:
        for rank, pid in list(left.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done == pid:
                results[rank] = os.waitstatus_to_exitcode(status)
                del left[rank]
        time.sleep(0.005)
    for pid in left.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert not left, f"ranks {sorted(left)} did not end within {timeout:.0f} s"
    bad = {r: code for r, code in results.items() if code != 0 and r not in doomed}
    assert not bad, f"exit statuses {bad}"


class Death:
    """The end of one rank, once all others have said that they are ready for it."""

    def __init__(self, victim, size):
        self.victim, self.others = victim, size - 1
        self.ready, self.noticed = multiprocessing.Value("i", 0), multiprocessing.Value("i", 0)

    @staticmethod
    def _add(count):
        with count.get_lock():
            count.value += 1

    def _all(self, count):
        deadline = time.monotonic() + TIMEOUT / 2
        while count.value < self.others:
            assert time.monotonic() < deadline, "the other ranks do not come"
            time.sleep(0.005)

    def meet(self, rank):
        if rank != self.victim:
            self._add(self.ready)
            return
        self._all(self.ready)
        os.kill(os.getpid(), signal.SIGKILL)

    def survive(self):
        """Those who are left end together: for one that is slower, who goes first would be as dead as the victim."""
        self._add(self.noticed)
        self._all(self.noticed)
        os._exit(0)  # torch's own group has lost a rank


def run(size, main, *args, hosts=1, doomed=(), timeout=TIMEOUT):
    wait(start(size, main, *args, hosts=hosts), doomed, timeout)
