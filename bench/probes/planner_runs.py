# SPDX-License-Identifier: Apache-2.0
"""Plans of built-in models on resized cluster profiles, by the Python package's libautopar."""
import argparse
import ctypes
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "plugins" / "python" / "src"))
os.environ.setdefault("CROSSMESH_LIBRARY", str(ROOT / "build" / "release" / "libcrossmesh.so.1"))

# pylint: disable=wrong-import-position
from crossmesh._abi import PlannerInfo, PlannerParams, PlannerPin  # noqa: E402
from crossmesh._planner import Handles, lib, text_of  # noqa: E402
from crossmesh.errors import CrossmeshError  # noqa: E402

# Of include/autopar/planner.h and include/crossmesh/status.h.
RECOMPUTE_ON, NO_SOLUTION = 2, -7


def plan(cluster, hosts, devices, **given):
    """The plan as docs/plan.md has it and what is known of the search, on so many hosts of so many devices. A list
    becomes an array and the number of its entries. XM_ERR_NO_SOLUTION is raised as any failure."""
    with Handles() as stack:
        whole = stack.made("ap_profile_destroy", lib.ap_profile_load, os.fsencode(cluster))
        profile = stack.made("ap_profile_destroy", lib.ap_profile_resize, whole, hosts, devices)
        for name, count, kind in (("micro_batches", "micro_batch_count", ctypes.c_int64),
                                  ("pins", "pin_count", PlannerPin)):
            if name in given:
                given[count] = len(given[name])
                given[name] = (kind * len(given[name]))(*given[name])
        params, info = PlannerParams(profile=profile, **given), PlannerInfo()
        made = stack.made("ap_plan_destroy", lambda params, made: lib.ap_planner_plan(params, made, info), params)
        return json.loads(text_of(lib.ap_plan_text(made))), info


def positive(text):
    """A number of things, of which there is one at least."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def run(main):
    """A program, whose failures are one sentence."""
    try:
        sys.exit(main())
    except (CrossmeshError, OSError, ValueError) as error:
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {error}")
