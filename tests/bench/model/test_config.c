/* SPDX-License-Identifier: Apache-2.0 */
/* Parallel configurations and sharding tables: files, defaults, refusals. */
#include "bench/model/sharding.h"
#include "bench/model/parallel_config.h"
#include "tests/bench/model/model_fixture.h"

START_TEST(recorded_configurations)
{
    char path[MODEL_FIXTURE_PATH];
    rb_parallel_t train, generation;

    ck_assert_xm_ok(rb_parallel_read(model_fixture_path(QWEN_H100, path), &train, &generation));
    ck_assert_int_eq(train.num_gpus, 32);
    ck_assert_int_eq(train.tp, 4);
    ck_assert_int_eq(train.pp, 4);
    ck_assert_int_eq(train.data, 2);
    ck_assert_int_eq(generation.stage_ranks, 32);
    ck_assert_int_eq(generation.data, 8);
    ck_assert_xm_ok(rb_parallel_read(model_fixture_path(QWEN_GB200, path), &train, &generation));
    ck_assert_int_eq(train.stage_ranks, 4);
    ck_assert_int_eq(generation.tp, 1);
    ck_assert_int_eq(generation.data, 16);
}
END_TEST

START_TEST(absent_sizes_are_one)
{
    char path[MODEL_FIXTURE_PATH];
    rb_parallel_t train, generation;

    (void)model_fixture_write("{\"generation\": {\"tp_size\": 2, \"num_gpus\": 6}, \"_a\": [],"
                              " \"train\": {\"_b\": 0, \"num_gpus\": 1}}",
                              path);
    ck_assert_xm_ok(rb_parallel_read(path, &train, &generation));
    ck_assert_int_eq(train.data, 1);
    ck_assert_int_eq(train.fsdp, 1);
    ck_assert_int_eq(generation.dp, 3);
    ck_assert_int_eq(generation.data, 3);
    (void)unlink(path);
}
END_TEST

typedef struct {
    rb_parallel_t given;
    int data, etp, expert_data, expert_fsdp;
} reading_t;

static const reading_t readings[] = {
    /* ep taken out of dp; etp is tp */
    {{.num_gpus = 64, .tp = 2, .pp = 2, .dp = 16, .ep = 8}, 16, 2, 2, 1},
    /* ep an axis of its own */
    {{.num_gpus = 64, .tp = 2, .pp = 2, .dp = 2, .ep = 8}, 16, 2, 2, 1},
    /* ep too large for tp beside it: experts are whole */
    {{.num_gpus = 32, .tp = 4, .dp = 8, .ep = 16}, 8, 1, 2, 1},
    /* dp counts replicas of experts, ep covers tp */
    {{.num_gpus = 64, .tp = 4, .dp = 2, .ep = 32}, 16, 1, 2, 1},
    /* replicas of sharded groups, and fsdp within dp */
    {{.num_gpus = 16, .dp = 4, .fsdp = 4}, 16, 1, 16, 4},
    {{.num_gpus = 16, .dp = 16, .fsdp = 4}, 16, 1, 16, 4},
    /* ep takes 4 of fsdp's 16, and etp is asked for */
    {{.num_gpus = 32, .tp = 2, .fsdp = 16, .ep = 4, .etp = 1}, 16, 1, 8, 4},
    {{.num_gpus = 8, .cp = 2, .tp = 2}, 2, 2, 4, 1},
};

START_TEST(num_gpus_decides_the_reading)
{
    rb_parallel_t parallel = readings[_i].given;

    ck_assert_xm_ok(rb_parallel_resolve(&parallel));
    ck_assert_int_eq(parallel.data, readings[_i].data);
    ck_assert_int_eq(parallel.etp, readings[_i].etp);
    ck_assert_int_eq(parallel.expert_data, readings[_i].expert_data);
    ck_assert_int_eq(parallel.expert_fsdp, readings[_i].expert_fsdp);
}
END_TEST

typedef struct {
    const char *text, *sentence;
} bad_t;

#define GOOD "\"generation\": {\"num_gpus\": 1}"

static const bad_t bad_configurations[] = {
    {"{" GOOD "}", "'train' is missing"},
    {"{" GOOD ", \"train\": 3}", "'train' is an integer"},
    {"{" GOOD ", \"trian\": {}}", "did you mean train"},
    {"{" GOOD ", \"train\": {\"tp_size\": 2}}", "train: 'num_gpus' is missing"},
    {"{" GOOD ", \"train\": {\"num_gpus\": 2, \"tp_sise\": 2}}", "did you mean tp_size"},
    {"{" GOOD ", \"train\": {\"num_gpus\": 2, \"tp_size\": \"2\"}}", "'tp_size' is a string"},
    {"{" GOOD ", \"train\": {\"num_gpus\": 2, \"tp_size\": 0}}", "'tp_size' is 0; it must be 1"},
    {"{" GOOD ", \"train\": {\"num_gpus\": 9999999999}}", "'num_gpus' is 9999999999"},
    {"{" GOOD ", \"train\": {\"num_gpus\": 32, \"tp_size\": 4, \"pp_size\": 4, \"dp_size\": 3}}",
     "train: pp 4 x dp 3 x fsdp 1 x cp 1 x tp 4 does not make num_gpus 32"},
    {"{" GOOD ", \"train\": {\"num_gpus\": 8, \"tp_size\": 3}}",
     "train: pp 1 x fsdp 1 x cp 1 x tp 3 does not divide num_gpus 8"},
    {"{" GOOD ", \"train\": {\"num_gpus\": 8, \"tp_size\": 4194304, \"pp_size\": 4194304,"
     " \"cp_size\": 4194304}}",
     "does not divide num_gpus 8"},
    {"{" GOOD ", \"train\": {\"num_gpus\": 8, \"ep_size\": 3, \"dp_size\": 8}}",
     "ep 3 x etp 1 does not divide the 8 ranks"},
    {"{" GOOD ", \"train\": {\"num_gpus\": 8, \"ep_size\": 4, \"etp_size\": 4}}",
     "ep 4 x etp 4 does not divide the 8 ranks"},
};

START_TEST(bad_configurations_are_refused)
{
    const bad_t *bad = &bad_configurations[_i];
    char path[MODEL_FIXTURE_PATH];
    rb_parallel_t train, generation;
    xm_status_t status;

    (void)model_fixture_write(bad->text, path);
    status = rb_parallel_read(path, &train, &generation);
    ck_assert(xm_status_is_caller(status));
    ck_assert_msg(strstr(xm_last_error(), bad->sentence) != NULL, "'%s' lacks '%s'",
                  xm_last_error(), bad->sentence);
    ck_assert_msg(strncmp(xm_last_error(), path, strlen(path)) == 0, "'%s' lacks the path",
                  xm_last_error());
    (void)unlink(path);
}
END_TEST

START_TEST(missing_files_are_named)
{
    rb_parallel_t train, generation;

    ck_assert_xm_fails(rb_parallel_read("no-such.json", &train, &generation), XM_ERR_NOT_FOUND,
                       "no-such.json: ");
}
END_TEST

static xm_status_t find(const rb_shard_table_t *table, const char *name, int dims,
                        const rb_shard_rule_t **rule)
{
    rb_tensor_t tensor = {.dims = dims, .shape = {64, 64, 64}, .bits = 16};

    (void)snprintf(tensor.name, sizeof(tensor.name), "%s", name);
    return rb_shard_table_find(table, &tensor, rule);
}

typedef struct {
    const char *name;
    int dims, tp, ep;
    bool heads, first_stage;
    const char *pack;
    int part;
} entry_t;

static const entry_t entries[] = {
    {"model.embed_tokens.weight", 2, 0, -1, false, true, "", 0},
    {"lm_head.weight", 2, 0, -1, false, false, "", 0},
    {"model.layers.0.self_attn.v_proj.weight", 2, 0, -1, true, false, "qkv_proj", 2},
    {"model.layers.0.self_attn.k_proj.bias", 1, 0, -1, true, false, "qkv_proj", 1},
    {"model.layers.0.self_attn.o_proj.weight", 2, 1, -1, false, false, "", 0},
    {"model.layers.0.self_attn.q_norm.weight", 1, -1, -1, false, false, "", 0},
    {"model.layers.0.self_attn.q_b_proj.weight", 2, 0, -1, false, false, "", 0},
    {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 2, -1, -1, false, false,
     "fused_qkv_a_proj", 1},
    {"model.layers.0.mlp.down_proj.weight", 2, 1, -1, false, false, "", 0},
    {"model.layers.0.mlp.up_proj.weight", 2, 0, -1, false, false, "gate_up_proj", 1},
    {"model.layers.0.mlp.shared_experts.up_proj.weight", 2, 0, -1, false, false, "gate_up_proj", 1},
    {"model.layers.0.mlp.experts.7.down_proj.weight", 2, 1, -2, false, false, "", 0},
    {"model.layers.0.mlp.experts.gate_proj.weight", 3, 1, 0, false, false, "", 0},
    {"model.layers.0.mlp.gate.weight", 2, -1, -1, false, false, "", 0},
    {"model.layers.0.input_layernorm.weight", 1, -1, -1, false, false, "", 0},
    {"model.layers.0.block_sparse_moe.experts.3.w3.weight", 2, 0, -2, false, false, "w13", 1},
};

START_TEST(built_in_table)
{
    const entry_t *entry = &entries[_i];
    rb_shard_table_t table = {0};
    const rb_shard_rule_t *rule;

    ck_assert_xm_ok(find(&table, entry->name, entry->dims, &rule));
    ck_assert_int_eq(rule->tp, entry->tp);
    ck_assert_int_eq(rule->ep, entry->ep);
    ck_assert_int_eq(rule->heads, entry->heads);
    ck_assert_int_eq(rule->first_stage, entry->first_stage);
    ck_assert_str_eq(rule->pack, entry->pack);
    ck_assert_int_eq(rule->part, entry->part);
}
END_TEST

START_TEST(unknown_names_are_refused)
{
    rb_shard_table_t table = {0};
    const rb_shard_rule_t *rule;

    ck_assert_xm_fails(find(&table, "model.layers.0.self_attn.qkv_proj.weight", 2, &rule),
                       XM_ERR_NOT_FOUND,
                       "no entry for tensor 'model.layers.0.self_attn.qkv_proj.weight'; add it "
                       "with --shard-table FILE");
    ck_assert_xm_fails(find(&table, "a.o_proj.weight", 1, &rule), XM_ERR_INVALID_ARGUMENT,
                       "has 1 dimensions, but the sharding table's entry '*.o_proj.weight' splits "
                       "dimension 1");
    ck_assert_xm_fails(find(&table, "a.experts.all.gate_proj.weight", 2, &rule),
                       XM_ERR_INVALID_ARGUMENT, "no number after 'experts.'");
}
END_TEST

START_TEST(file_entries_come_first)
{
    rb_shard_table_t table;
    const rb_shard_rule_t *rule;
    char path[MODEL_FIXTURE_PATH];

    (void)model_fixture_write(
        "{\"_comment\": \"\", \"head_size\": 96, \"rules\": ["
        "{\"name\": \"*.5.*o_proj.weight\", \"tp\": null, \"stage\": \"first\"},"
        "{\"name\": \"x?y.weight\", \"tp\": 1, \"ep\": 0, \"pack\": \"xy\", \"part\": 3},"
        "{\"name\": \"e.*\", \"tp\": null, \"ep\": \"name\"}]}",
        path);
    ck_assert_xm_ok(rb_shard_table_read(path, &table));
    ck_assert_int_eq(table.head_size, 96);
    ck_assert_xm_ok(find(&table, "layers.5.o_proj.weight", 2, &rule));
    ck_assert_int_eq(rule->tp, -1);
    ck_assert(rule->first_stage);
    ck_assert_xm_ok(find(&table, "layers.6.o_proj.weight", 2, &rule));
    ck_assert_int_eq(rule->tp, 1);
    ck_assert_xm_ok(find(&table, "x-y.weight", 2, &rule));
    ck_assert_int_eq(rule->ep, 0);
    ck_assert_str_eq(rule->pack, "xy");
    ck_assert_int_eq(rule->part, 3);
    ck_assert_int_eq(find(&table, "xy.weight", 2, &rule), XM_ERR_NOT_FOUND);
    ck_assert_xm_ok(find(&table, "e.experts.4.w", 2, &rule));
    ck_assert_int_eq(rule->ep, RB_SHARD_EXPERT_IN_NAME);
    rb_shard_table_clear(&table);
    (void)unlink(path);
}
END_TEST

static const bad_t bad_tables[] = {
    {"{\"rules\": {}}", "'rules' is an object"},
    {"{\"rulez\": []}", "did you mean rules"},
    {"{\"rules\": [4]}", "rules[0] is an integer"},
    {"{\"rules\": [{\"name\": \"a\"}]}", "rules[0]: 'tp' is missing"},
    {"{\"rules\": [{\"tp\": 0}]}", "rules[0]: 'name' is nothing"},
    {"{\"rules\": [{\"name\": \"\", \"tp\": 0}]}", "'name' is an empty string"},
    {"{\"rules\": [{\"name\": \"a\", \"tp\": \"0\"}]}", "'tp' is a string"},
    {"{\"rules\": [{\"name\": \"a\", \"tp\": 12}]}", "'tp' is 12; it must be 0 to 11"},
    {"{\"rules\": [{\"name\": \"a\", \"tp\": null, \"ep\": \"x\"}]}", "'ep' is 'x'"},
    {"{\"rules\": [{\"name\": \"a\", \"tp\": 1, \"ep\": 1}]}", "both split dimension 1"},
    {"{\"rules\": [{\"name\": \"a\", \"tp\": 1, \"heads\": true}]}", "'heads' needs 'tp' 0"},
    {"{\"rules\": [{\"name\": \"a\", \"tp\": 0, \"heads\": 1}]}", "must be true or false"},
    {"{\"rules\": [{\"name\": \"a\", \"tp\": 0, \"pack\": \"p\"}]}", "come together"},
    {"{\"rules\": [{\"name\": \"a\", \"tp\": 0, \"stage\": \"frist\"}]}", "did you mean first"},
    {"{\"head_size\": 0}", "'head_size' is 0"},
};

START_TEST(bad_tables_are_refused)
{
    rb_shard_table_t table;
    char path[MODEL_FIXTURE_PATH];

    (void)model_fixture_write(bad_tables[_i].text, path);
    ck_assert(xm_status_is_caller(rb_shard_table_read(path, &table)));
    ck_assert_msg(strstr(xm_last_error(), bad_tables[_i].sentence) != NULL, "'%s' lacks '%s'",
                  xm_last_error(), bad_tables[_i].sentence);
    (void)unlink(path);
}
END_TEST

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

int main(void)
{
    Suite *suite = suite_create("model_config");
    TCase *tests = tcase_create("model_config");

    tcase_add_test(tests, recorded_configurations);
    tcase_add_test(tests, absent_sizes_are_one);
    tcase_add_loop_test(tests, num_gpus_decides_the_reading, 0, COUNT(readings));
    tcase_add_loop_test(tests, bad_configurations_are_refused, 0, COUNT(bad_configurations));
    tcase_add_test(tests, missing_files_are_named);
    tcase_add_loop_test(tests, built_in_table, 0, COUNT(entries));
    tcase_add_test(tests, unknown_names_are_refused);
    tcase_add_test(tests, file_entries_come_first);
    tcase_add_loop_test(tests, bad_tables_are_refused, 0, COUNT(bad_tables));
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
