# SPDX-License-Identifier: Apache-2.0
"""JAX arrays between device meshes and processes.

    >>> import jax, crossmesh.jax
    >>> jax.distributed.initialize()                                    # in a job of several processes
    >>> y = crossmesh.jax.device_put(x, NamedSharding(serving, P("tp")))  # x lies on another mesh
    >>> params = crossmesh.jax.reshard(params, shardings)                 # a tree of arrays as one problem
    >>> step = crossmesh.jax.auto_shard(train_step, mesh, "cluster.json") # planned, then jitted

`Transfer` does it inside compiled programs. Every device of the job is a rank of crossmesh, in the order of `jax.devices()` by id. All processes call the same
functions in the same order, those without a device in either mesh as well.
"""

from ._auto_shard import AutoSharded, auto_shard
from ._devices import Devices, default_devices, shutdown
from ._program import Transfer, shutdown_programs
from ._transfer import device_put, reshard

__all__ = [
    "AutoSharded",
    "Devices",
    "Transfer",
    "auto_shard",
    "default_devices",
    "device_put",
    "reshard",
    "shutdown",
    "shutdown_programs",
]
