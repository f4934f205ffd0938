# SPDX-License-Identifier: Apache-2.0
"""The job that a process group's ranks make up."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ..errors import InputError
from ..job import Job
from ._store import StoreAllgather

_jobs: list[tuple[Any, Job]] = []
_made = 0


def default_job(**options: Any) -> Job:
    """The job of torch.distributed's default group; made when it is first asked for, by all ranks. The ranks meet
    through the group's own Store. `options` are Job.from_oob()'s."""
    global _made
    if not dist.is_available() or not dist.is_initialized():
        raise InputError("torch.distributed has no default group yet: call init_process_group() first, or give a job")
    group = dist.group.WORLD
    for owner, job in list(_jobs):
        if owner is group and not job.closed:
            return job
        _jobs.remove((owner, job))
        job.close()
    store = dist.PrefixStore(f"crossmesh/{_made}", dist.distributed_c10d._get_default_store())
    _made += 1
    table = StoreAllgather(store, dist.get_rank(), dist.get_world_size())
    job = Job.from_oob(table, **options)
    _jobs.append((group, job))
    return job


def shutdown() -> None:
    """Leaves the default job. Done at exit, too. Collective."""
    while _jobs:
        _jobs.pop()[1].close()
