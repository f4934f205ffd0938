/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The published refits. Their times are of whole refits on GPUs, with packing, loading and
 * whatever else the systems do, so they stand beside a plan and are not compared as equals.
 */
#include "bench/cases/published.h"

#include <stddef.h>
#include <string.h>

static const char nemo_doc[] = "NVIDIA-NeMo/RL docs/design-docs/nccl-reshard-refit.md, H100",
                  nemo_final[] = "NVIDIA-NeMo/RL pull request 2971, DGX H100",
                  nemo_first[] = "NVIDIA-NeMo/RL pull request 2413",
                  verl_readme[] = "verl verl/checkpoint_engine/README.md, 4 x 8 H100",
                  experts_whole[] = "experts are not cut by tensor parallelism (ETP 1), as the "
                                    "design document demands",
                  no_platform[] = "the hosts are DGX H100";

static const rb_published_t rows[] = {
    {"dsv3", "DeepSeek-V3 BF16", "PP16xEP16 -> TP32xDP8", 2.39, 2.83, nemo_doc,
     "without the module for multi-token prediction"},
    {"q4b-dp8", "Qwen3-4B BF16", "DP8 -> TP8", 0.21, 0.34, nemo_doc, NULL},
    {"q4b-tp2", "Qwen3-4B BF16", "TP2xDP4 -> TP4xDP2", 0.11, 0.15, nemo_first, no_platform},
    {"q30b-pp2", "Qwen3-30B-A3B BF16", "EP8xPP2 -> TP8xDP2", 0.74, 1.00, nemo_doc, NULL},
    {"q30b-tp2", "Qwen3-30B-A3B BF16", "EP4xTP2xDP2 -> TP4xDP4", 1.13, 1.53, nemo_final,
     experts_whole},
    {"q30b-fsdp", "Qwen3-30B-A3B BF16", "FSDP2 -> DP30", 7, 7, verl_readme,
     "each of the 30 rollouts holds the whole model; the trainers share the first host with six of "
     "them"},
    {"q235b", "Qwen3-235B-A22B BF16", "TP4xPP8xEP16 -> TP8xDP16", 4.56, 4.85, nemo_first,
     "128 training ranks, experts not cut by tensor parallelism, on DGX H100"},
};

const rb_published_t *rb_published_find(const char *name)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        if (strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}
