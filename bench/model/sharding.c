/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sharding table: patterns of parameter names with the dimensions that tensor and
 * expert parallelism split. Names that no pattern matches are errors and never guesses,
 * since a wrong layout moves the wrong bytes without any complaint.
 */
#include "bench/model/sharding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WHOLE = RB_SHARD_NONE,
    NO_EP = RB_SHARD_NONE,
    ONE = RB_SHARD_EXPERT_IN_NAME,
    ROWS = 0,
    COLUMNS = 1
};

/* clang-format off */
/* The columns are pattern, tp, ep, cut between heads, first stage, packed into, place
 * there. The first match counts, so special patterns stand before general ones. */
static const rb_shard_rule_t builtin[] = {
    {"*.experts.*.gate_proj.weight", ROWS, ONE, false, false, "gate_up_proj", 0},
    {"*.experts.*.up_proj.weight", ROWS, ONE, false, false, "gate_up_proj", 1},
    {"*.experts.*.down_proj.weight", COLUMNS, ONE, false, false, "", 0},
    {"*.experts.*.w1.weight", ROWS, ONE, false, false, "w13", 0},
    {"*.experts.*.w3.weight", ROWS, ONE, false, false, "w13", 1},
    {"*.experts.*.w2.weight", COLUMNS, ONE, false, false, "", 0},
    {"*.experts.*.gate_proj.weight_scale_inv", ROWS, ONE, false, false, "gate_up_proj", 0},
    {"*.experts.*.up_proj.weight_scale_inv", ROWS, ONE, false, false, "gate_up_proj", 1},
    {"*.experts.*.down_proj.weight_scale_inv", COLUMNS, ONE, false, false, "", 0},
    {"*.experts.gate_proj.weight", 1, 0, false, false, "", 0},
    {"*.experts.up_proj.weight", 1, 0, false, false, "", 0},
    {"*.experts.down_proj.weight", 2, 0, false, false, "", 0},

    {"*embed_tokens.weight", ROWS, NO_EP, false, true, "", 0},
    {"*word_embeddings.weight", ROWS, NO_EP, false, true, "", 0},
    {"*lm_head.weight", ROWS, NO_EP, false, false, "", 0},
    {"*lm_head.bias", ROWS, NO_EP, false, false, "", 0},
    {"*shared_head.head.weight", ROWS, NO_EP, false, false, "", 0},
    {"*output_layer.weight", ROWS, NO_EP, false, false, "", 0},

    {"*.q_proj.weight", ROWS, NO_EP, true, false, "qkv_proj", 0},
    {"*.k_proj.weight", ROWS, NO_EP, true, false, "qkv_proj", 1},
    {"*.v_proj.weight", ROWS, NO_EP, true, false, "qkv_proj", 2},
    {"*.q_proj.bias", ROWS, NO_EP, true, false, "qkv_proj", 0},
    {"*.k_proj.bias", ROWS, NO_EP, true, false, "qkv_proj", 1},
    {"*.v_proj.bias", ROWS, NO_EP, true, false, "qkv_proj", 2},
    {"*.o_proj.weight", COLUMNS, NO_EP, false, false, "", 0},
    {"*.o_proj.bias", WHOLE, NO_EP, false, false, "", 0},

    {"*.q_a_proj.weight", WHOLE, NO_EP, false, false, "fused_qkv_a_proj", 0},
    {"*.kv_a_proj_with_mqa.weight", WHOLE, NO_EP, false, false, "fused_qkv_a_proj", 1},
    {"*.q_b_proj.weight", ROWS, NO_EP, false, false, "", 0},
    {"*.kv_b_proj.weight", ROWS, NO_EP, false, false, "", 0},
    {"*.q_a_proj.weight_scale_inv", WHOLE, NO_EP, false, false, "fused_qkv_a_proj", 0},
    {"*.kv_a_proj_with_mqa.weight_scale_inv", WHOLE, NO_EP, false, false, "fused_qkv_a_proj", 1},
    {"*.q_b_proj.weight_scale_inv", ROWS, NO_EP, false, false, "", 0},
    {"*.kv_b_proj.weight_scale_inv", ROWS, NO_EP, false, false, "", 0},
    {"*.o_proj.weight_scale_inv", COLUMNS, NO_EP, false, false, "", 0},

    {"*.gate_proj.weight", ROWS, NO_EP, false, false, "gate_up_proj", 0},
    {"*.up_proj.weight", ROWS, NO_EP, false, false, "gate_up_proj", 1},
    {"*.gate_proj.bias", ROWS, NO_EP, false, false, "gate_up_proj", 0},
    {"*.up_proj.bias", ROWS, NO_EP, false, false, "gate_up_proj", 1},
    {"*.down_proj.weight", COLUMNS, NO_EP, false, false, "", 0},
    {"*.down_proj.bias", WHOLE, NO_EP, false, false, "", 0},
    {"*.gate_proj.weight_scale_inv", ROWS, NO_EP, false, false, "gate_up_proj", 0},
    {"*.up_proj.weight_scale_inv", ROWS, NO_EP, false, false, "gate_up_proj", 1},
    {"*.down_proj.weight_scale_inv", COLUMNS, NO_EP, false, false, "", 0},

    {"*.gate.weight", WHOLE, NO_EP, false, false, "", 0},
    {"*.gate.e_score_correction_bias", WHOLE, NO_EP, false, false, "", 0},
    {"*.shared_expert_gate.weight", WHOLE, NO_EP, false, false, "", 0},
    {"*.eh_proj.weight", WHOLE, NO_EP, false, false, "", 0},
    {"*norm.weight", WHOLE, NO_EP, false, false, "", 0},
    {"*norm.bias", WHOLE, NO_EP, false, false, "", 0},
    {"*rotary_emb.inv_freq", WHOLE, NO_EP, false, false, "", 0},
};
/* clang-format on */

/* Matches greedily with one point to return to: linear in practice, and without
 * recursion, which the patterns of a file could drive deep. */
static bool matches(const char *pattern, const char *name)
{
    const char *star = NULL, *resume = NULL;

    while (*name != '\0') {
        if (*pattern == '*') {
            star = pattern++;
            resume = name;
        } else if (*pattern == '?' || *pattern == *name) {
            ++pattern;
            ++name;
        } else if (star != NULL) {
            pattern = star + 1;
            name = ++resume;
        } else {
            return false;
        }
    }
    while (*pattern == '*') {
        ++pattern;
    }
    return *pattern == '\0';
}

/* Tables have some tens of rules, and a model's tensors are looked up once each. */
static const rb_shard_rule_t *first_match(const rb_shard_rule_t *rules, int count, const char *name)
{
    for (int i = 0; i < count; ++i) {
        if (matches(rules[i].pattern, name)) {
            return &rules[i];
        }
    }
    return NULL;
}

/* A rule that does not fit the tensor is reported with its pattern, since the name alone
 * matched. */
static xm_status_t check_rule(const rb_shard_rule_t *rule, const rb_tensor_t *tensor)
{
    int highest = rule->tp > rule->ep ? rule->tp : rule->ep;

    if (highest >= tensor->dims) {
        return XM_INVALID("tensor '%s' has %d dimensions, but the sharding table's entry '%s' "
                          "splits dimension %d; say how it is sharded with --shard-table",
                          tensor->name, tensor->dims, rule->pattern, highest);
    }
    if (rule->ep == RB_SHARD_EXPERT_IN_NAME && rb_tensor_expert(tensor->name) < 0) {
        return XM_INVALID("tensor '%s' matches the sharding table's entry '%s' of single experts, "
                          "but has no number after 'experts.' in its name",
                          tensor->name, rule->pattern);
    }
    return XM_OK;
}

/* The file's rules come first, so they override built-in ones. */
xm_status_t rb_shard_table_find(const rb_shard_table_t *table, const rb_tensor_t *tensor,
                                const rb_shard_rule_t **rule)
{
    const rb_shard_rule_t *found = first_match(table->rules, table->count, tensor->name);

    if (found == NULL) {
        found = first_match(builtin, (int)(sizeof(builtin) / sizeof(builtin[0])), tensor->name);
    }
    if (found == NULL) {
        return XM_NOT_FOUND("the sharding table has no entry for tensor '%s'; add it with "
                            "--shard-table FILE holding {\"rules\": [{\"name\": \"%s\", \"tp\": "
                            "null}]}, with null for replicated or the dimension that tp splits",
                            tensor->name, tensor->name);
    }
    XM_TRY(check_rule(found, tensor));
    *rule = found;
    return XM_OK;
}

void rb_shard_table_clear(rb_shard_table_t *table)
{
    free(table->rules);
    *table = (rb_shard_table_t){0};
}
