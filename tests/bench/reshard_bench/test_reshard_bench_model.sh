#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Models: built in and from files, on real processes, simulated ranks and in plans only.
set -u
. "$(dirname "$0")/reshard_bench_checks.sh"

# A model: built in, and from files; on real processes and simulated ranks, with packed parameters.
run 1 -n 32 --case dense-7b --scale 1/64 -w 0 -i 1 --verify --scheduler greedy --nic-gbps 10
run 4 --suite model --scale 1/64 --transport sim -w 0 -i 1 --strategy auto --verify
cat >"$directory/model.json" <<'EOF'
{"model.embed_tokens.weight": {"shape": [96, 64], "dtype": "BF16"},
 "model.layers.0.self_attn.q_proj.weight": {"shape": [64, 64]},
 "model.layers.0.self_attn.k_proj.weight": {"shape": [32, 64]},
 "model.layers.0.self_attn.v_proj.weight": {"shape": [32, 64]},
 "model.layers.0.special.weight": {"shape": [8, 64], "dtype": "F32"},
 "model.norm.weight": {"shape": [64], "dtype": "F32"}}
EOF
cat >"$directory/system.json" <<'EOF'
{"train": {"num_gpus": 4, "tp_size": 2}, "generation": {"num_gpus": 4, "tp_size": 4}}
EOF
echo '{"rules": [{"name": "*.special.weight", "tp": 1}]}' >"$directory/table.json"
set -- --model-config "$directory/model.json" --system-config "$directory/system.json"
if timeout 60 "$RESHARD_BENCH" "$@" --dry-run >"$out" 2>&1 || ! grep -q special "$out"; then
    fail "a parameter that no entry names"
fi
run 1 -n 8 "$@" --shard-table "$directory/table.json" --ranks-per-host 4 -i 2
timeout 60 "$RESHARD_BENCH" "$@" --shard-table "$directory/table.json" --json --dry-run >"$out" || fail "--model-config"
json "$out" "d['results'][0]['case'] == 'model' and d['results'][0]['tensors'] == 6"
json "$out" "d['results'][0]['packed'] == 1 and d['results'][0]['elements'] == 96 * 64 + 128 * 64 + 8 * 64 + 64"
json "$out" "d['results'][0]['src'] == dict(first_rank=0, ranks=4, tp=2, pp=1, dp=2, fsdp=1, ep=1, cp=1)"
json "$out" "d['results'][0]['dst']['first_rank'] == 4 and d['results'][0]['dst']['tp'] == 4"

# Plans at full size, without a rank: auto says which scheduler it took.
timeout 120 "$RESHARD_BENCH" --suite model --dry-run --json >"$out" || fail "--suite model --dry-run"
json "$out" "[r['case'] for r in d['results']] == ['dense-7b', 'dense-32b', 'dense-70b', 'moe-256e']"
json "$out" "all(r['gap'] >= 0 and abs(r['makespan_s'] / r['bound_s'] - 1 - r['gap']) < 1e-6 for r in d['results'])"

finish
