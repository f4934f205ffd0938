#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A planner for `autopar plan --planner "python3 planner.py"`: the plan whose fullest device needs the least memory, of
those at most a tenth slower than the fastest. It asks autopar's own planner once for every number of stages."""

import json
import subprocess
import sys


def memory(plan):
    """Bytes of the fullest device."""
    return max(
        m["state_bytes"] + m["in_flight"] * m["activation_bytes"] + m["work_bytes"]
        for m in (stage["memory"] for stage in plan["stages"])
    )


request = json.load(sys.stdin)
least, most = request["options"]["stages"]
plans, reason = [], ""
counts = range(least or 1, (most or 8) + 1)
for done, stages in enumerate(counts):
    print(f"progress {done / len(counts):.2f} {stages} stages", file=sys.stderr, flush=True)
    request["options"]["stages"] = [stages, stages]
    asked = subprocess.run(
        ["autopar", "plan", "--request", "-"], input=json.dumps(request), capture_output=True, text=True
    )
    if asked.returncode == 0:
        plans.append(json.loads(asked.stdout))
    else:
        reason = asked.stderr.splitlines()[-1]
if not plans:  # the last line on standard error is the reason
    print(reason, file=sys.stderr)
    sys.exit(2)
fastest = min(plan["predicted"]["step_s"] for plan in plans)
json.dump(min((p for p in plans if p["predicted"]["step_s"] <= 1.1 * fastest), key=memory), sys.stdout)
