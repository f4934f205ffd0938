# SPDX-License-Identifier: Apache-2.0
"""Jobs of several processes: what is moved, several requests at once, threads, Ctrl-C, deaths."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest

import ranks
from crossmesh import Job, Layout, Mesh, Plan, Reshard, TensorSpec, errors


def pattern(layout, rank, bits, seed):
    """A rank's tile of a tensor whose element i, counted row-major, is made from i and the seed."""
    tile = layout.tile(rank)
    if tile is None:
        return None
    indices = [0]
    for part, extent in zip(tile, layout.shape):
        indices = [i * extent + k for i in indices for k in range(part.start, part.stop)]
    size = bits // 8
    return bytearray(b"".join(((i * 2654435761 + seed * 97) % 2**bits).to_bytes(size, "little") for i in indices))


def random_side(rng, size, shape):
    sizes = rng.choice([(2,), (3,), (2, 2), (1, 3), (4,), ()])
    count = 1
    for extent in sizes:
        count *= extent
    mesh, axes = Mesh(sizes, rng.sample(range(size), count)), list(range(len(sizes)))
    rng.shuffle(axes)
    split = [[] for _ in shape]
    for axis in axes:
        place = rng.randrange(len(shape) + 1)
        if place < len(shape):
            split[place].append(axis)
    spec = "".join("S" + "".join(map(str, s)) if s else "R" for s in split)
    return Layout(mesh, spec, shape, rng.choice(["chunk", "balanced"]))


def random_batch(rng, size):
    batch = []
    for _ in range(rng.randint(1, 4)):
        shape = [rng.randint(0, 9) for _ in range(rng.randint(0, 3))]
        sides = random_side(rng, size, shape), random_side(rng, size, shape)
        batch.append(TensorSpec(*sides, rng.choice([8, 16, 24, 32, 64, 128])))
    return batch


class Case:
    """A random batch with this rank's buffers."""

    def __init__(self, job, seed):
        rng = random.Random(seed)
        self.batch, self.rank = random_batch(rng, job.size), job.rank
        self.plan = Plan(self.batch, job.network(), chunk_bytes=rng.choice([0, 64]))
        self.src = [pattern(t.src, job.rank, t.bits, 0) for t in self.batch]
        self.dst = [None if b is None else bytearray(len(b)) for b in self.wanted(0)]
        self.reshard = Reshard(job, self.plan, self.src, self.dst)

    def wanted(self, seed):
        return [pattern(t.dst, self.rank, t.bits, seed) for t in self.batch]

    def fill(self, seed):
        for tensor, buffer in zip(self.batch, self.src):
            if buffer is not None:
                buffer[:] = pattern(tensor.src, self.rank, tensor.bits, seed)

    def check(self, seed):
        assert self.dst == self.wanted(seed), (self.rank, self.batch)


def move(rank, progress_thread):
    with Job.from_env(progress_thread=progress_thread) as job:
        assert (job.rank, job.size) == (rank, 4)
        blobs = job.allgather(b"x" * rank)
        assert blobs == [b"x" * r for r in range(4)], blobs
        for seed in range(25):
            case = Case(job, seed)
            for run in range(2):
                case.fill(run)
                case.reshard.run()
                case.check(run)
            case.reshard.verify()
        # Several at once, waited for in another order on every rank.
        cases = [Case(job, 100 + i) for i in range(6)]
        for case in cases:
            case.fill(7)
        order = list(range(6))
        random.Random(rank).shuffle(order)
        requests = [case.reshard.post() for case in cases]
        for i in order:
            requests[i].wait()
        for case in cases:
            case.check(7)
        job.barrier()


def big_plan(job, elements=1 << 16):
    """From rank 0 to all others."""
    src, dst = Layout(Mesh(1), "R", (elements,)), Layout(Mesh(job.size), "R", (elements,))
    return Plan(TensorSpec(src, dst, 8), job.network())


def move_with_threads(rank):
    """Python computes while the progress thread moves; and threads of one process share the job."""
    with Job.from_env(progress_thread=True) as job:
        plan = big_plan(job)
        src = bytes(range(256)) * 256 if rank == 0 else None
        targets = [bytearray(1 << 16) for _ in range(3)]
        reshards = [Reshard(job, plan, src, target) for target in targets]
        requests = [reshard.post() for reshard in reshards]
        deadline = time.monotonic() + ranks.TIMEOUT
        while not all(request.done for request in requests) and time.monotonic() < deadline:
            time.sleep(0.01)  # without a call that makes progress
        for request, target in zip(requests, targets):
            request.wait()
            assert target == bytes(range(256)) * 256
        waiters = []
        for reshard in reshards:
            request = reshard.post()
            waiters.append(threading.Thread(target=request.wait))
            waiters[-1].start()
        for waiter in waiters:
            waiter.join()
        job.barrier()


def taken_without_requests(rank, ends):
    """What is sent to a rank that has no request and calls nothing, its progress thread takes: the sender is done first."""
    with Job.from_env(progress_thread=True) as job:
        count = 1 << 10
        spec = TensorSpec(Layout(Mesh(1, [0]), "R", (count,)), Layout(Mesh(1, [1]), "R", (count,)), 8, "x")
        source, result = bytes(i * 7 % 251 for i in range(count)), bytearray(count)
        reshard = Reshard(job, Plan([spec], job.network()), source if rank == 0 else None, result if rank == 1 else None)
        if rank == 0:
            reshard.run()
            os.write(ends[1], b"x")
        else:
            assert os.read(ends[0], 1) == b"x"
            reshard.run()
            assert result == source
        job.barrier()


def interrupted(rank, progress_thread):
    """Rank 1 gets Ctrl-C while it waits for a rank that does not come; everybody hears of it, and then goes on."""
    with Job.from_env(progress_thread=progress_thread) as job:
        target = bytearray(1 << 16)
        reshard = Reshard(job, big_plan(job), bytes(1 << 16) if rank == 0 else None, target)
        job.barrier()
        started = time.monotonic()
        try:
            if rank == 1:
                ranks.interrupt_once(lambda: job._requests)
            if rank != 0:
                reshard.run()
            else:
                job.barrier()
            raise AssertionError("not interrupted")
        except KeyboardInterrupt:
            assert rank == 1
        except errors.AbortedError as error:
            assert rank != 1 and "rank 1" in str(error) and "interrupted" in str(error), error
        assert time.monotonic() - started < ranks.SOON
        job.shrink()
        assert (job.size, job.generation, job.original_rank(rank)) == (3, 1, rank)
        reshard = Reshard(job, big_plan(job), b"y" * (1 << 16) if rank == 0 else None, target)
        reshard.run()
        assert target == b"y" * (1 << 16)


def interrupted_anywhere(rank, progress_thread):
    """Ctrl-C between any two instructions: no lock stays taken, and what comes next works, if only after a shrink()."""
    rng = random.Random(7)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    data, copy = rng.randbytes(1 << 12), bytearray(1 << 12)
    with Job.local(progress_thread=progress_thread) as job:
        layout = Layout(Mesh(1), "R", (1 << 12,))
        plan = Plan(TensorSpec(layout, layout, 8), job.network())
        reshard = Reshard(job, plan, data, copy)
        for _ in range(120):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + 0.004 * rng.random())
                while True:
                    reshard.run()
                    job.barrier()
            except KeyboardInterrupt:
                pass
            copy[:] = bytes(len(copy))
            try:
                job.barrier()
                reshard.run()
            except errors.AbortedError as error:
                assert "interrupted" in str(error), error
                job.shrink()
                reshard = Reshard(job, plan, data, copy)
                reshard.run()
            assert copy == data


def interrupted_alone(rank, interrupted, ended):
    """Ctrl-C while rank 1 has not come yet; when it comes, it hears of it."""
    if rank == 0:
        started = time.monotonic()
        try:
            ranks.interrupt_once(lambda: ranks.listens(int(os.environ["MASTER_PORT"])))
            Job.from_env(timeout=100 * ranks.TIMEOUT)
            raise AssertionError("not interrupted")
        except KeyboardInterrupt:
            assert time.monotonic() - started < ranks.SOON
        interrupted.set()
        assert ended.wait(ranks.TIMEOUT)
        return
    assert interrupted.wait(ranks.TIMEOUT)
    try:
        with Job.from_env() as job:
            job.barrier()
        raise AssertionError("rank 0 is there")
    except errors.PeerError as error:
        assert "interrupted" in str(error), error
    ended.set()


def outlive(rank, death):
    """Rank 2 is killed while the others wait for it; they go on without it."""
    job = Job.from_env()
    elements = 1 << 16
    layouts = Layout(Mesh(1, [2]), "R", (elements,)), Layout(Mesh(3), "R", (elements,))
    plan = Plan(TensorSpec(*layouts, 8), job.network())
    reshard = Reshard(job, plan, bytes(elements) if rank == 2 else None, bytearray(elements))
    job.barrier()
    death.meet(rank)
    started = time.monotonic()
    try:
        reshard.run()
        raise AssertionError("rank 2 was not missed")
    except errors.PeerDiedError as error:
        assert "rank 2" in str(error), error
    seconds = time.monotonic() - started
    assert seconds < ranks.SOON, seconds
    job.shrink()
    assert (job.size, job.rank) == (2, rank), job
    target = bytearray(elements)
    Reshard(job, big_plan(job), b"z" * elements if rank == 0 else None, target).run()
    assert target == b"z" * elements, target.count(b"z")
    job.close()


def silent(rank, given_up):
    """Rank 0 does not come: a deadline says so; the wait of a request gives up before, and the run goes on."""
    with Job.from_env() as job:
        target = bytearray(1 << 16)
        reshard = Reshard(job, big_plan(job), b"q" * (1 << 16) if rank == 0 else None, target)
        job.barrier()
        if rank == 0:
            given_up.wait(ranks.TIMEOUT)
        request = reshard.post()
        if rank == 1:
            try:
                request.wait(timeout=0.1)
                raise AssertionError("rank 0 came early")
            except TimeoutError as error:
                assert "goes on" in str(error), error
            given_up.set()
        request.wait()
        assert target == b"q" * (1 << 16)
        job.barrier()
        if rank == 1:
            try:
                reshard.run(timeout=0.3)
                raise AssertionError("rank 0 did not run this")
            except errors.DeadlineError as error:
                assert "rank 1 waits for" in str(error) and "rank 0" in str(error), error
        job.barrier()


def disagree(rank):
    """Every rank hears what differs; a rank with bad buffers does not leave the others waiting."""
    with Job.from_env() as job:
        elements = 8 if rank == 1 else 16
        src, dst = Layout(Mesh(1), "R", (elements,)), Layout(Mesh(2), "R", (elements,))
        plan = Plan(TensorSpec(src, dst, 8), job.network())
        try:
            Reshard(job, plan, bytes(16), bytearray(16))
            raise AssertionError("shapes differ")
        except errors.InputError as error:
            assert "rank 1 has shape 8" in str(error), error
        for bad in (bytes(1 << 16), bytearray(3)):
            try:
                Reshard(job, big_plan(job), bytes(1 << 16), bad if rank == 1 else bytearray(1 << 16))
                raise AssertionError("rank 1 had a bad buffer")
            except errors.CrossmeshError as error:
                assert rank == 1 or "rank 1" in str(error), error
        Reshard(job, big_plan(job), bytes(1 << 16), bytearray(1 << 16)).run()


def leave_by_exception(rank):
    try:
        with Job.from_env() as job:
            if rank == 1:
                raise RuntimeError("out of ideas")
            try:
                job.barrier()
                raise AssertionError("rank 1 is gone")
            except errors.PeerError as error:
                assert "out of ideas" in str(error), error
    except RuntimeError:
        assert rank == 1


# Programs that do not close their job: it is left at exit, with the exception that has ended the program.
ENDS = """
import crossmesh, sys
job = crossmesh.Job.from_env()
job.barrier()
if sys.argv[1] == "raise" and job.rank == 1:
    raise RuntimeError("no more ideas")
if sys.argv[1] == "raise":
    try:
        job.barrier()
    except crossmesh.PeerError as error:
        print(error)
"""


def end(how):
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ranks.free_port())}
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", ENDS, how],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [program.communicate(timeout=ranks.TIMEOUT)[0] for program in programs]
    return outputs, [program.returncode for program in programs]


class Jobs(unittest.TestCase):
    def test_random_batches(self):
        ranks.run(4, move, False)

    def test_random_batches_between_emulated_hosts_with_a_progress_thread(self):
        ranks.run(4, move, True, hosts=2)

    def test_threads(self):
        ranks.run(3, move_with_threads)

    def test_taken_without_requests(self):
        ranks.run(2, taken_without_requests, os.pipe(), hosts=2)

    def test_disagreement(self):
        ranks.run(2, disagree)


class Faults(unittest.TestCase):
    def test_ctrl_c(self):
        for progress_thread in (False, True):
            ranks.run(3, interrupted, progress_thread)

    def test_ctrl_c_at_any_time(self):
        for progress_thread in (False, True):
            ranks.run(1, interrupted_anywhere, progress_thread)

    def test_ctrl_c_before_the_others_come(self):
        ranks.run(2, interrupted_alone, multiprocessing.Event(), multiprocessing.Event(), timeout=2 * ranks.TIMEOUT)

    def test_a_death(self):
        ranks.run(3, outlive, ranks.Death(2, 3), doomed=(2,))

    def test_a_deadline(self):
        ranks.run(2, silent, multiprocessing.Event())

    def test_an_exception_is_quoted(self):
        ranks.run(2, leave_by_exception)

    def test_the_end_of_a_program(self):
        self.assertEqual(end("quietly"), (["", ""], [0, 0]))
        outputs, codes = end("raise")
        self.assertEqual(codes, [0, 1])
        self.assertIn("rank 1", outputs[0])
        self.assertIn("RuntimeError: no more ideas", outputs[0])


if __name__ == "__main__":
    sys.exit(unittest.main())
