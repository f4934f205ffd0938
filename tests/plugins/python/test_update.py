# SPDX-License-Identifier: Apache-2.0
"""Updates: versions whose every element is known from its place, deaths between and within commits, other threads."""

import os
import signal
import unittest

import ranks
from crossmesh import Job, Layout, Mesh, Plan, TensorSpec, Update, errors

ROWS, COLUMNS, VERSIONS = 96, 128, 12
SRC = Layout(Mesh((2,), range(2)), "S0R", (ROWS, COLUMNS))
DST = Layout(Mesh((2,), range(2, 4)), "RS0", (ROWS, COLUMNS))


def value(row, column, version):
    """Of two bytes: changes in the versions that divide a number of its place."""
    place = row * COLUMNS + column
    last = max(v for v in range(1, version + 1) if v == 1 or (place * 2654435761 >> 7) % (v * 11) == 0)
    return (place * 40503 + last * 1013) % 65536


def tile(layout, rank, version):
    """What a rank has of it."""
    where = layout.tile(rank)
    if where is None:
        return None
    rows, columns = (range(part.start, part.stop) for part in where)
    return bytearray(b"".join(value(r, c, version).to_bytes(2, "little") for r in rows for c in columns))


def join():
    job = Job.from_env(timeout=ranks.TIMEOUT)
    return job, Plan(TensorSpec(SRC, DST, bits=16, name="weights"), job.network())


def check_changed(update, rank, version):
    """All elements that are others than in the version before are told; in the first, all are; later, not all."""
    bits, now, before = update.changed(), tile(DST, rank, version), tile(DST, rank, max(1, version - 1))
    told = [bits[e // 8] >> e % 8 & 1 for e in range(len(now or b"") // 2)]
    assert len(bits) == -(-len(told) // 8), (len(bits), len(told))
    assert all(told) if version == 1 else version < 3 or not told or not all(told), version
    for e, told_here in enumerate(told):
        assert told_here or now[2 * e : 2 * e + 2] == before[2 * e : 2 * e + 2], (version, e)


def keep_up(rank):
    job, plan = join()
    src, dst = tile(SRC, rank, 1), tile(DST, rank, 1)
    if dst is not None:
        dst[:] = bytes(len(dst))
    with Update(job, plan, src=src, dst=dst, dtype="bfloat16") as update:
        assert update.version == 0 and update.read(lambda: 1) == (0, None)
        for version in range(1, VERSIONS + 1):
            if src is not None:
                src[:] = tile(SRC, rank, version)
            commit = update.commit()
            assert commit.version == version == update.version, commit
            assert commit.everything == (version == 1)
            assert version == 1 or commit.sent_bytes <= commit.dense_bytes, commit
            assert update.read(lambda: bytes(dst or b"")) == (version, bytes(tile(DST, rank, version) or b""))
            check_changed(update, rank, version)
    with unittest.TestCase().assertRaisesRegex(errors.InputError, "the update is closed"):
        update.commit()
    job.close()


def lose_a_source(rank):
    job, plan = join()
    src, dst = tile(SRC, rank, 1), tile(DST, rank, 1)
    update = Update(job, plan, src=src, dst=dst)
    update.commit()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if src is not None:
        src[:] = tile(SRC, rank, 2)
    try:
        update.commit()
    except (errors.PeerDiedError, errors.AbortedError) as error:
        assert "rank 0" in str(error), error
    else:
        raise AssertionError("a commit without rank 0")
    # What is there is the version before.
    assert update.version == 1 and dst == tile(DST, rank, 1)
    job.shrink()
    job.close()


def plan_of(job, servers):
    """From the rows of the first two ranks to servers that have all of it."""
    dst = Layout(Mesh((servers,), range(2, 2 + servers)), "RR", (ROWS, COLUMNS))
    return dst, Plan(TensorSpec(SRC, dst, bits=16, name="weights"), job.network())


def go_on(rank, port):
    """Three ranks commit, a fourth comes late, and the third dies; nobody is sent more than it lacks."""
    update, seen = None, 0
    src, dst = tile(SRC, rank, 1), None if rank < 2 else bytearray(2 * ROWS * COLUMNS)
    whole = Layout(Mesh((1,), (rank,)), "RR", (ROWS, COLUMNS))

    def commit(version, everything):
        if src is not None:
            src[:] = tile(SRC, rank, version)
        commit = update.commit()
        assert commit.version == version and commit.everything == everything, commit
        assert dst is None or dst == tile(whole, rank, version)
        return commit

    if rank < 3:
        later = os.environ["MASTER_PORT"]
        os.environ.update(WORLD_SIZE="3", MASTER_PORT=str(port))
        with Job.from_env(timeout=ranks.TIMEOUT) as job:
            update = Update(job, plan_of(job, 1)[1], src=src, dst=dst)
            commit(1, True)
            seen = commit(2, False).version
        assert update.version == seen
        os.environ.update(WORLD_SIZE="4", MASTER_PORT=later)
    with Job.from_env(timeout=ranks.TIMEOUT) as job:
        update = Update(job, plan_of(job, 2)[1], src=src, dst=dst, previous=update)
        assert update.version == seen
        commit(3, False)
        if rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        with unittest.TestCase().assertRaises((errors.PeerDiedError, errors.AbortedError)):
            commit(4, False)
        assert update.version == 3 and (dst is None or dst == tile(whole, rank, 3))
        job.shrink()
        with unittest.TestCase().assertRaises(errors.CrossmeshError):
            update.commit()
        update = Update(job, plan_of(job, 1)[1], src=src, dst=dst, previous=update)
        assert commit(4, False).sent_bytes < ROWS * COLUMNS
    update.close()


class Updates(unittest.TestCase):
    def test_every_version_is_the_sources(self):
        ranks.wait(ranks.start(4, keep_up, hosts=2))

    def test_others_go_on_in_other_groups(self):
        ranks.wait(ranks.start(4, go_on, ranks.free_port()), doomed={3})

    def test_a_death_leaves_the_version_before(self):
        ranks.wait(ranks.start(4, lose_a_source, hosts=2), doomed={0})


if __name__ == "__main__":
    unittest.main()
