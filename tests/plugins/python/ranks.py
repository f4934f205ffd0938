"""Runs the ranks of a small job as forked processes and collects them."""

import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback

# Seconds that waits of a test may take, longer where the machine is slowed down.
PATIENCE = 60 * float(os.environ.get("CROSSMESH_TEST_PATIENCE", "1"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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


def wait(pids, doomed=(), patience=PATIENCE):
    """Fails unless every rank that is not doomed ends with 0 in time."""
    deadline = time.monotonic() + patience
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
    assert not left, f"ranks {sorted(left)} did not end within {patience:.0f} s"
    bad = {r: code for r, code in results.items() if code != 0 and r not in doomed}
    assert not bad, f"exit statuses {bad}"


class Death:
    """The end of one rank, once all others have said that they are ready for it."""

    def __init__(self, victim, size):
        self.victim, self.others = victim, size - 1
        self.ready = multiprocessing.Value("i", 0)

    def meet(self, rank):
        if rank != self.victim:
            with self.ready.get_lock():
                self.ready.value += 1
            return
        while self.ready.value < self.others:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)


def run(size, main, *args, hosts=1, doomed=(), patience=PATIENCE):
    wait(start(size, main, *args, hosts=hosts), doomed, patience)
