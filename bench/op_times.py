#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds to a cluster profile how long PyTorch's operators and collectives take on the ranks that run this.

    torchrun --nproc-per-node N bench/op_times.py CLUSTER.json -o OUT.json [--types float32,bfloat16,float16] [--threads N]

What the numbers mean: docs/cluster-profile.md; how they are measured: crossmesh.torch.probe().
"""
import argparse
import json

import torch
import torch.distributed as dist
from crossmesh.torch import probe


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", help="cluster profile, as autopar probe writes it")
    parser.add_argument("-o", "--output", required=True, help="where the profile with the times goes")
    parser.add_argument("--types", default="float32", help="of the operators' numbers (float32)")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on the CPU: what one device has (1)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    dist.init_process_group()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    made = probe(given.profile, device=device, dtypes=[getattr(torch, name) for name in given.types.split(",")])
    if dist.get_rank() == 0:
        with open(given.output, "w", encoding="utf-8") as file:
            json.dump(made, file, indent=1)
            file.write("\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
