/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which results a compiler gives no buffer, by the fusion that each operator declares. The rules
 * are XLA's: a cheap operator is computed in each of its readers if all can take it in, so the
 * buffers that it reads live as long as they do; another one only in a single reader. Products,
 * scatters and whatever changes places by data read buffers.
 */

#include "planner/intra_op/fusion.h"

/* Whether an operator's kernel can compute the operand `tensor` itself. A view does so for what
 * reads it. */
static bool takes_in(const ap_shard_readers_t *r, const bool *absorbed, int reader)
{
    const ap_op_t *op = ap_graph_op(r->graph, reader);

    return op->kind == AP_OP_REDUCE || op->fusion == AP_FUSION_ONCE ||
           op->fusion == AP_FUSION_ANYWHERE ||
           (op->fusion == AP_FUSION_VIEW && absorbed[op->results[0]]);
}

/* Whether two operators run as often, one after the other: outside of loops, or in one. */
static bool same_loop(const ap_shard_readers_t *r, int a, int b)
{
    bool inside = ap_graph_op(r->graph, a)->repeat > 1 || ap_graph_op(r->graph, b)->repeat > 1;

    return !inside || r->loop[a] == r->loop[b];
}

/* Whether every reader of a result takes it in. One that nobody reads is a result of the graph. */
static bool is_absorbed(const ap_shard_readers_t *r, const bool *absorbed, int op, int tensor)
{
    bool all = r->first[tensor] < r->first[tensor + 1];

    for (int u = r->first[tensor]; u < r->first[tensor + 1]; ++u) {
        all = all && same_loop(r, r->user[u], op) && takes_in(r, absorbed, r->user[u]);
    }
    return all;
}

void ap_shard_find_absent(const ap_shard_readers_t *r, bool *absent)
{
    /* Backwards, as readers come after what they read; until the end, only what is absorbed is
     * marked. */
    for (int o = ap_graph_ops(r->graph) - 1; o >= 0; --o) {
        const ap_op_t *op = ap_graph_op(r->graph, o);
        int tensor = op->results[0], readers = r->first[tensor + 1] - r->first[tensor];
        bool once = op->fusion == AP_FUSION_ONCE;

        absent[tensor] = op->fusion != AP_FUSION_NEVER && (!once || readers == 1) &&
                         ap_graph_tensor(r->graph, tensor)->alias_of < 0 &&
                         is_absorbed(r, absent, o, tensor);
    }
    for (int o = 0; o < ap_graph_ops(r->graph); ++o) {
        const ap_op_t *op = ap_graph_op(r->graph, o);
        int tensor = op->results[0];

        if (op->fusion == AP_FUSION_VIEW && r->first[tensor] < r->first[tensor + 1] &&
            ap_graph_tensor(r->graph, tensor)->alias_of < 0) {
            absent[tensor] = true;
        }
    }
}

int ap_shard_overwrites(const ap_shard_readers_t *r, const bool *absent, int op,
                        bool (*free)(const void *arg, int tensor), const void *arg)
{
    const ap_op_t *of = ap_graph_op(r->graph, op);

    if (of->fusion == AP_FUSION_NEVER ||
        (of->fusion != AP_FUSION_VIEW && of->kind != AP_OP_ELEMENTWISE)) {
        return -1;
    }
    for (int i = 0; i < of->operand_count; ++i) {
        int tensor = of->operands[i], producer = ap_graph_tensor(r->graph, tensor)->producer;

        if (ap_graph_tensor_bytes(r->graph, tensor) !=
            ap_graph_tensor_bytes(r->graph, of->results[0])) {
            continue;
        }
        if (absent[tensor] && producer >= 0) {
            tensor = ap_shard_overwrites(r, absent, producer, free, arg);
        } else if (!free(arg, tensor)) {
            tensor = -1;
        }
        if (tensor >= 0) {
            return tensor;
        }
    }
    return -1;
}
