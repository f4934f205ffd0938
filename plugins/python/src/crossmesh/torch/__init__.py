# SPDX-License-Identifier: Apache-2.0
"""crossmesh for PyTorch: DTensors and state dicts between different DeviceMeshes of one job.

    >>> from crossmesh.torch import redistribute
    >>> there = redistribute(here, serving_mesh, [Shard(0)])     # all ranks call it

The ranks meet through torch.distributed's own Store; torch's groups are used for nothing else.
"""

from __future__ import annotations

import torch

try:
    import torch.distributed.tensor  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"crossmesh.torch needs PyTorch 2.5 or later with torch.distributed.tensor; this is {torch.__version__}"
    ) from error

from ._apply import Applied, apply
from ._job import default_job, shutdown
from ._plan import Plan, load_plan, plan
from ._probe import probe
from ._sync import WeightSync
from ._tracing import record
from ._transfer import StateDictTransfer, redistribute, reshard_state_dict

__all__ = [
    "Applied",
    "Plan",
    "StateDictTransfer",
    "WeightSync",
    "apply",
    "default_job",
    "load_plan",
    "plan",
    "probe",
    "record",
    "redistribute",
    "reshard_state_dict",
    "shutdown",
]
