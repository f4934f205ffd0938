# SPDX-License-Identifier: Apache-2.0
"""Moves sharded tensors between device meshes.

    >>> import crossmesh
    >>> job = crossmesh.Job.from_env()                                  # under torchrun, mpirun or srun
    >>> src = crossmesh.Layout(crossmesh.Mesh((2, 4), range(8)), "S01R", (8192, 8192))
    >>> dst = crossmesh.Layout(crossmesh.Mesh((2, 4), range(8, 16)), "RS01", (8192, 8192))
    >>> plan = crossmesh.Plan(crossmesh.TensorSpec(src, dst, bits=32), job.network())
    >>> reshard = crossmesh.Reshard(job, plan, src=my_rows, dst=my_columns)   # NumPy, PyTorch, JAX, CuPy …
    >>> reshard.run()                                                   # as often as wanted

`crossmesh.torch` does this for DTensors and state dicts. Failures are exceptions (`crossmesh.errors`) with the
library's sentence.
"""

from . import errors
from ._native import library_path
from ._oob import OutOfBand
from .buffers import Buffer
from .errors import *  # noqa: F403
from .job import Job
from .layouts import Layout, Mesh
from .meeting import Meeting, rendezvous
from .network import Network
from .plan import Hop, Plan, TensorSpec
from .reshard import Request, Reshard
from .update import Commit, Update

__version__ = "0.2.0"

__all__ = [
    *errors.__all__,
    "Buffer",
    "Commit",
    "Hop",
    "Job",
    "Layout",
    "Meeting",
    "Mesh",
    "Network",
    "OutOfBand",
    "Plan",
    "Request",
    "Reshard",
    "TensorSpec",
    "Update",
    "errors",
    "library_path",
    "rendezvous",
]
