/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/plan/plan.h"

#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

#include "xm_test.h"

/* A plan of two stages on 2 x 4 devices that is right in every respect. */
typedef struct sample {
    ap_plan_op_t ops[2];
    ap_plan_layers_t layers[3];
    int devices[2][4];
    ap_plan_stage_t stages[2];
    ap_link_load_t links[2];
    ap_plan_boundary_t boundary;
    ap_plan_params_t params;
} sample_t;

static void fill_stages(sample_t *sample)
{
    for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 4; ++j) {
            sample->devices[i][j] = 4 * i + j;
        }
        sample->stages[i] =
            (ap_plan_stage_t){.first_layer = i == 0 ? 0 : 3,
                              .last_layer = i == 0 ? 2 : 5,
                              .hosts = 1,
                              .devices_per_host = 4,
                              .shape = {i == 0 ? 1 : 2, i == 0 ? 4 : 2},
                              .devices = sample->devices[i],
                              .forward = 0.125,
                              .backward = 0.25,
                              .sync = 0.5,
                              .update = 0.0625,
                              .state_bytes = 1e9,
                              .activation_bytes = 1e8,
                              .work_bytes = 1e7,
                              .in_flight = 2 - i,
                              .recompute = true,
                              .layer_count = i == 0 ? 2 : 1,
                              .layers = i == 0 ? sample->layers : sample->layers + 2};
    }
}

static void fill_sample(sample_t *sample)
{
    *sample = (sample_t){0};
    sample->ops[0] = (ap_plan_op_t){"qkv", "bsh,hf->bsf", "S0RR,RS1", "S0RS1",
                                    "1: reduce-scatter 0, all-gather 0"};
    sample->ops[1] = (ap_plan_op_t){"add", "bsh,bsh->bsh", "S0RR,S0RR", "S0RR", ""};
    sample->layers[0] = (ap_plan_layers_t){0, 0, 1, sample->ops};
    sample->layers[1] = (ap_plan_layers_t){1, 2, 2, sample->ops};
    sample->layers[2] = (ap_plan_layers_t){3, 5, 2, sample->ops};
    fill_stages(sample);
    sample->links[0] = (ap_link_load_t){.index = 1, .forward = {0.0, 0.01}, .backward = {0.02}};
    sample->links[1] = (ap_link_load_t){.rack = true, .forward = {0.005}, .backward = {0, 0.015}};
    sample->boundary = (ap_plan_boundary_t){.tensor = "block2.out",
                                            .rank = 3,
                                            .shape = {8, 1024, 2048},
                                            .dtype = "float16",
                                            .element_size = 2,
                                            .src = {{1, 4}, 4, sample->devices[0], "S1RR"},
                                            .dst = {{2, 2}, 4, sample->devices[1], "S0RS1"},
                                            .bytes = 8 * 1024 * 2048 * 2,
                                            .net_bytes = 8 * 1024 * 2048 * 2,
                                            .forward = 0.01,
                                            .backward = 0.02,
                                            .bound = 0.005,
                                            .strategy = "broadcast",
                                            .scheduler = "balance",
                                            .links = sample->links,
                                            .link_count = 2};
    sample->params.info = (ap_plan_info_t){.model = "gpt-test",
                                           .layers = 6,
                                           .parameters = 1.3e9,
                                           .global_batch = 1024,
                                           .micro_batches = 128,
                                           .schedule = "1f1b",
                                           .cluster = "lab",
                                           .cluster_provenance = "measured",
                                           .hosts = 2,
                                           .devices_per_host = 4,
                                           .memory_limit = 16e9,
                                           .step = 50.5,
                                           .sum = 0.8,
                                           .bottleneck = 0.4,
                                           .send = 0.003,
                                           .split = 1.25,
                                           .weight = 0.375,
                                           .optimiser = "exact"};
    sample->params.stages = sample->stages;
    sample->params.stage_count = 2;
    sample->params.boundaries = &sample->boundary;
}

START_TEST(a_plan_survives_the_file)
{
    char path[] = "/tmp/xm_test_plan_XXXXXX";
    int fd = mkstemp(path);
    sample_t sample;
    ap_plan_t *plan, *loaded;
    const ap_plan_boundary_t *boundary;
    const ap_plan_stage_t *stage;

    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    fill_sample(&sample);
    ck_assert_xm_ok(ap_plan_create(&sample.params, &plan));
    ck_assert_xm_ok(ap_plan_save(plan, path));
    ck_assert_xm_ok(ap_plan_load(path, &loaded));
    ck_assert_str_eq(ap_plan_digest(plan), ap_plan_digest(loaded));
    ck_assert_uint_eq(strlen(ap_plan_digest(plan)), 32);
    ck_assert_int_eq(ap_plan_stages(loaded), 2);
    ck_assert_int_eq(ap_plan_boundaries(loaded), 1);
    stage = ap_plan_stage(loaded, 1);
    ck_assert_int_eq(stage->first_layer, 3);
    ck_assert_int_eq(stage->shape[0], 2);
    ck_assert_int_eq(stage->devices[3], 7);
    ck_assert_double_eq(stage->backward, 0.25);
    ck_assert_str_eq(stage->layers[0].ops[1].operands, "S0RR,S0RR");
    ck_assert_double_eq(ap_plan_stage_seconds(loaded, 1), 0.125 + 0.25 + 0.5625 / 128);
    ck_assert_double_eq(ap_plan_stage_memory(ap_plan_stage(loaded, 0)), 1e9 + 2e8 + 1e7);
    boundary = ap_plan_boundary(loaded, 0);
    ck_assert_int_eq(boundary->rank, 3);
    ck_assert_int_eq(boundary->shape[2], 2048);
    ck_assert_str_eq(boundary->dst.spec, "S0RS1");
    ck_assert_int_eq(boundary->dst.devices[0], 4);
    ck_assert_int_eq(boundary->link_count, 2);
    for (int i = 0; i < 2; ++i) {
        const ap_link_load_t *link = &boundary->links[i];

        ck_assert(link->rack == sample.links[i].rack && link->index == sample.links[i].index);
        for (int d = 0; d < AP_LINK_DIRECTIONS; ++d) {
            ck_assert_double_eq(link->forward[d], sample.links[i].forward[d]);
            ck_assert_double_eq(link->backward[d], sample.links[i].backward[d]);
        }
    }
    ck_assert_str_eq(ap_plan_info(loaded)->model, "gpt-test");
    ck_assert_double_eq(ap_plan_info(loaded)->send, 0.003);
    ck_assert_double_eq(ap_plan_info(loaded)->split, 1.25);
    ck_assert_double_eq(ap_plan_info(loaded)->weight, 0.375);
    ck_assert(ap_plan_info(loaded)->rematerialize);
    ck_assert_int_eq(ap_plan_info(loaded)->micro_batches, 128);
    ap_plan_destroy(loaded);
    ap_plan_destroy(plan);
    ap_plan_destroy(NULL);
    (void)unlink(path);
}
END_TEST

/* Stages that differ say so; where all are alike the schedule does, and no stage has the key. */
START_TEST(stages_recompute_one_by_one)
{
    static const struct {
        bool first, second;
        const char *text;
    } rows[] = {{false, false, "off"}, {true, true, "on"}, {false, true, "in stage 1"}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        sample_t sample;
        ap_plan_t *plan, *read;
        char *text, names[32];

        fill_sample(&sample);
        sample.stages[0].recompute = rows[i].first;
        sample.stages[1].recompute = rows[i].second;
        ck_assert_xm_ok(ap_plan_create(&sample.params, &plan));
        text = ap_plan_text(plan);
        ck_assert_xm_ok(ap_plan_parse("sample.json", text, strlen(text), &read));
        ck_assert_int_eq(strstr(text, "\"recompute\"") != NULL, rows[i].first != rows[i].second);
        ck_assert_int_eq(ap_plan_info(read)->rematerialize, rows[i].first && rows[i].second);
        ck_assert_int_eq(ap_plan_stage(read, 0)->recompute, rows[i].first);
        ck_assert_int_eq(ap_plan_stage(read, 1)->recompute, rows[i].second);
        ck_assert_str_eq(ap_plan_recompute_text(read, names, sizeof(names)), rows[i].text);
        free(text);
        ap_plan_destroy(read);
        ap_plan_destroy(plan);
    }
}
END_TEST

/* How a file became layers is in the plan, for whoever reads the file again. */
START_TEST(a_plan_tells_how_its_model_was_read)
{
    static const char *const marks[] = {"dot.1", "dot.7"}, *const dims[] = {"batch=8"};
    sample_t sample;
    ap_plan_t *plan, *read;
    const ap_plan_reading_t *reading;
    char *text;

    fill_sample(&sample);
    sample.params.info.reading = (ap_plan_reading_t){.layers = -1,
                                                     .pattern = "h[.]([0-9]+)",
                                                     .marks = marks,
                                                     .mark_count = 2,
                                                     .dims = dims,
                                                     .dim_count = 1};
    ck_assert_xm_ok(ap_plan_create(&sample.params, &plan));
    text = ap_plan_text(plan);
    ck_assert_xm_ok(ap_plan_parse("sample.json", text, strlen(text), &read));
    reading = &ap_plan_info(read)->reading;
    ck_assert_int_eq(reading->layers, -1);
    ck_assert_str_eq(reading->pattern, "h[.]([0-9]+)");
    ck_assert_uint_eq(reading->mark_count, 2);
    ck_assert_str_eq(reading->marks[1], "dot.7");
    ck_assert_uint_eq(reading->dim_count, 1);
    ck_assert_str_eq(reading->dims[0], "batch=8");
    free(text);
    ap_plan_destroy(read);
    ap_plan_destroy(plan);
}
END_TEST

START_TEST(digest_is_of_the_contents)
{
    sample_t sample;
    ap_plan_t *a, *b, *c;

    fill_sample(&sample);
    ck_assert_xm_ok(ap_plan_create(&sample.params, &a));
    ck_assert_xm_ok(ap_plan_create(&sample.params, &b));
    sample.boundary.src.spec = "RRR";
    ck_assert_xm_ok(ap_plan_create(&sample.params, &c));
    ck_assert_str_eq(ap_plan_digest(a), ap_plan_digest(b));
    ck_assert_str_ne(ap_plan_digest(a), ap_plan_digest(c));
    ap_plan_destroy(a);
    ap_plan_destroy(b);
    ap_plan_destroy(c);
}
END_TEST

/* The sample's text with the first `old` replaced; free() it. */
static char *edited(const char *old, const char *replacement)
{
    sample_t sample;
    ap_plan_t *plan;
    char *text, *at, *result;
    size_t size;

    fill_sample(&sample);
    ck_assert_xm_ok(ap_plan_create(&sample.params, &plan));
    text = ap_plan_text(plan);
    at = strstr(text, old);
    ck_assert_msg(at != NULL, "the document lacks %s", old);
    size = strlen(text) + strlen(replacement) + 1;
    result = malloc(size);
    (void)snprintf(result, size, "%.*s%s%s", (int)(at - text), text, replacement, at + strlen(old));
    free(text);
    ap_plan_destroy(plan);
    return result;
}

static char *without_digest(char *text)
{
    char *at = strstr(text, " \"digest\"");

    if (at == NULL) {
        return text;
    }
    /* It is the last key: end the list before it. */
    while (*at != ',') {
        --at;
    }
    (void)strcpy(at, "}");
    return text;
}

START_TEST(documents_are_read_strictly)
{
    static const struct {
        const char *old, *new;
        bool keep_digest;
        xm_status_t status;
        const char *sentence;
    } rows[] = {
        {"1024", "1025", true, XM_ERR_PARSE, "does not match the contents"},
        {"\"version\": 1", "\"version\": 2", false, XM_ERR_PARSE, "version 2, not"},
        {"crossmesh-plan", "other", false, XM_ERR_PARSE, "this is not a plan"},
        {"\"optimiser\"", "\"optimizer\"", false, XM_ERR_PARSE, "optimiser"},
        {"\"model\"", "\"extra\": 1, \"model\"", false, XM_ERR_PARSE, "extra"},
        {"\"submesh\": \"1x4\"", "\"submesh\": \"4\"", false, XM_ERR_PARSE,
         "stages[0]: '4' is not a mesh"},
        {"\"submesh\": \"1x4\"", "\"submesh\": \"1x2\"", false, XM_ERR_PARSE,
         "stages[0]: ranks must be a list of 2"},
        {"\"mesh\": \"1x4\"", "\"mesh\": \"1x3\"", false, XM_ERR_PARSE,
         "mesh 1x3 is not a shape of the submesh 1x4"},
        {"\"S1RR\"", "\"S1R\"", false, XM_ERR_PARSE, "reshardings[0].src"},
        {"\"S1RR\"", "\"S2RR\"", false, XM_ERR_PARSE, "reshardings[0].src"},
        {"\"bytes\": 33554432", "\"bytes\": 33554431", false, XM_ERR_PARSE, "33554431 bytes"},
        {"\"micro_batches\": 128", "\"micro_batches\": 127", false, XM_ERR_PARSE,
         "does not divide into 127"},
        {"\"1f1b\"", "\"chimera\"", false, XM_ERR_PARSE, "'chimera' is not one that a plan"},
        {"\"weight_share\": 0.375", "\"weight_share\": 1.5", false, XM_ERR_PARSE,
         "weight_share is 1.5; it must be below 1"},
        {"\"in_flight\": 2", "\"in_flight\": 0", false, XM_ERR_PARSE, "0 micro-batches in flight"},
        {"\"layers\": 6", "\"layers\": 7", false, XM_ERR_PARSE, "model of 7 layers"},
        {"\"layers\": 6", "\"layers\": 4294967302", false, XM_ERR_PARSE,
         "model: layers 4294967302 is not in 0 to"},
        {"\"hosts\": 2", "\"hosts\": 4294967298", false, XM_ERR_PARSE,
         "cluster: hosts 4294967298 is not in 0 to"},
        {"\"in_flight\": 2", "\"in_flight\": 4294967298", false, XM_ERR_PARSE,
         "stages[0]: in_flight 4294967298 is not in 0 to"},
        {"\"layers\": [\n    0,\n    2", "\"layers\": [\n    0,\n    2147483647", false,
         XM_ERR_PARSE, "stages[0]: layer 2147483647 is not in 0 to"},
        {"\"submesh\": \"1x4\"", "\"submesh\": \"99999x99999\"", false, XM_ERR_PARSE,
         "'99999x99999' is not a mesh"},
        {"\"global_batch\": 1024", "\"global_batch\": -1024", false, XM_ERR_PARSE,
         "a batch of -1024"},
        {"\"host\": 1", "\"host\": 2", false, XM_ERR_PARSE,
         "reshardings[0]: host 2 of a cluster of 2 hosts"},
        {"\"host\": 1,", "", false, XM_ERR_PARSE,
         "reshardings[0].predicted.links[0]: neither a host nor a rack, or both"},
        {"\"host\": 1", "\"host\": 1, \"rack\": 0", false, XM_ERR_PARSE, "neither a host nor"},
        {"\"host\": 1", "\"hots\": 1", false, XM_ERR_PARSE, "predicted.links[0]"},
        {"\"parameters\"", "\"reading\": 1, \"parameters\"", false, XM_ERR_PARSE,
         "model.reading: "},
        {"\"parameters\"", "\"reading\": {\"layers\": -2}, \"parameters\"", false, XM_ERR_PARSE,
         "model.reading: -2 layers"},
        {"\"parameters\"", "\"reading\": {\"marks\": []}, \"parameters\"", false, XM_ERR_PARSE,
         "model.reading: marks must be a list of texts"},
        {"\"parameters\"", "\"reading\": {\"dims\": [1]}, \"parameters\"", false, XM_ERR_PARSE,
         "model.reading: entry 0 of dims is not a text"},
        {"\"parameters\"", "\"reading\": {\"other\": 1}, \"parameters\"", false, XM_ERR_PARSE,
         "model.reading: "},
        {"\"ranks\"", "\"recompute\": false, \"ranks\"", false, XM_ERR_PARSE,
         "schedule: rematerialize is true where not all stages recompute"},
        {"{", "{,", false, XM_ERR_PARSE, "sample.json: line 1, column 2"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        char *text = edited(rows[i].old, rows[i].new);
        ap_plan_t *plan = NULL;

        if (!rows[i].keep_digest) {
            (void)without_digest(text);
        }
        ck_assert_xm_fails(ap_plan_parse("sample.json", text, strlen(text), &plan), rows[i].status,
                           rows[i].sentence);
        ck_assert_ptr_null(plan);
        ck_assert_ptr_nonnull(strstr(xm_last_error(), "sample.json: "));
        free(text);
    }
}
END_TEST

/* Each of these keys holds a list; an object or a number there is not an empty list. */
START_TEST(lists_are_lists)
{
    static const char *const keys[] = {"stages", "reshardings", "sharding", "ops", "links"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); ++i) {
        char *text = without_digest(edited("gpt-test", "gpt-mine")), *mutated, expected[64];
        json_t *document = json_loads(text, 0, NULL);
        json_t *stage = json_array_get(json_object_get(document, "stages"), 0);
        json_t *layers = json_array_get(json_object_get(stage, "sharding"), 0);
        json_t *boundary = json_array_get(json_object_get(document, "reshardings"), 0);
        json_t *const holders[] = {document, document, stage, layers,
                                   json_object_get(boundary, "predicted")};
        json_t *holder = holders[i];
        ap_plan_t *plan = NULL;

        ck_assert_ptr_nonnull(json_object_get(holder, keys[i]));
        (void)json_object_set_new(holder, keys[i], json_object());
        mutated = json_dumps(document, 0);
        (void)snprintf(expected, sizeof(expected), "%s must be a list", keys[i]);
        ck_assert_xm_fails(ap_plan_parse("sample.json", mutated, strlen(mutated), &plan),
                           XM_ERR_PARSE, expected);
        json_decref(document);
        free(mutated);
        free(text);
    }
}
END_TEST

START_TEST(an_edited_file_without_digest_is_accepted)
{
    char *text = without_digest(edited("gpt-test", "gpt-mine"));
    ap_plan_t *plan;

    ck_assert_xm_ok(ap_plan_parse("sample.json", text, strlen(text), &plan));
    ck_assert_str_eq(ap_plan_info(plan)->model, "gpt-mine");
    ap_plan_destroy(plan);
    free(text);
}
END_TEST

/* As plans were written before, or by others: what the links carry is not known. */
START_TEST(a_plan_without_links_is_accepted)
{
    sample_t sample;
    ap_plan_t *plan, *loaded;
    json_t *document;
    char *text;

    fill_sample(&sample);
    ck_assert_xm_ok(ap_plan_create(&sample.params, &plan));
    text = ap_plan_text(plan);
    document = json_loads(text, 0, NULL);
    (void)json_object_del(document, "digest");
    (void)json_object_del(
        json_object_get(json_array_get(json_object_get(document, "reshardings"), 0), "predicted"),
        "links");
    free(text);
    text = json_dumps(document, 0);
    ck_assert_xm_ok(ap_plan_parse("sample.json", text, strlen(text), &loaded));
    ck_assert_int_eq(ap_plan_boundary(loaded, 0)->link_count, 0);
    free(text);
    json_decref(document);
    ap_plan_destroy(loaded);
    ap_plan_destroy(plan);
}
END_TEST

START_TEST(contradictions_are_refused)
{
    sample_t sample;
    ap_plan_t *plan = NULL;

    fill_sample(&sample);
    sample.devices[1][0] = 0;
    ck_assert_xm_fails(ap_plan_create(&sample.params, &plan), XM_ERR_PARSE,
                       "stages[1]: rank 0 belongs to stage 0 already");
    fill_sample(&sample);
    sample.devices[1][3] = 8;
    ck_assert_xm_fails(ap_plan_create(&sample.params, &plan), XM_ERR_PARSE,
                       "stages[1]: rank 8 is outside the 8 of the cluster");
    fill_sample(&sample);
    sample.stages[1].first_layer = 4;
    ck_assert_xm_fails(ap_plan_create(&sample.params, &plan), XM_ERR_PARSE,
                       "stages[1]: layers 4 to 5 where 3 comes next");
    fill_sample(&sample);
    sample.layers[1].first_layer = 2;
    ck_assert_xm_fails(ap_plan_create(&sample.params, &plan), XM_ERR_PARSE,
                       "stages[0].sharding[1]: layers 2 to 2 where 1 comes next");
    fill_sample(&sample);
    sample.layers[2].last_layer = 4;
    ck_assert_xm_fails(ap_plan_create(&sample.params, &plan), XM_ERR_PARSE,
                       "stages[1].sharding ends at layer 4");
    fill_sample(&sample);
    sample.boundary.shape[0] = 6;
    sample.boundary.bytes = 6 * 1024 * 2048 * 2;
    ck_assert_xm_fails(ap_plan_create(&sample.params, &plan), XM_ERR_PARSE,
                       "dimension 0 of 6 elements does not divide into 4");
    fill_sample(&sample);
    sample.boundary.dst.shape[0] = 4;
    sample.boundary.dst.shape[1] = 1;
    ck_assert_xm_fails(ap_plan_create(&sample.params, &plan), XM_ERR_PARSE,
                       "reshardings[0].dst: the mesh is not that of its stage");
    fill_sample(&sample);
    sample.links[1].backward[AP_LINK_IN] = -1.0;
    ck_assert_xm_fails(ap_plan_create(&sample.params, &plan), XM_ERR_PARSE, "reshardings[0]: -1");
    fill_sample(&sample);
    sample.stages[0].forward = -1.0;
    ck_assert_xm_fails(ap_plan_create(&sample.params, &plan), XM_ERR_PARSE, "stages[0]: -1");
    fill_sample(&sample);
    sample.params.info.model = NULL;
    ck_assert_xm_fails(ap_plan_create(&sample.params, &plan), XM_ERR_INVALID_ARGUMENT, "absent");
    sample.params.stage_count = 0;
    ck_assert_xm_fails(ap_plan_create(&sample.params, &plan), XM_ERR_INVALID_ARGUMENT, "0 stages");
    ck_assert_ptr_null(plan);
}
END_TEST

START_TEST(files_that_cannot_be_used)
{
    sample_t sample;
    ap_plan_t *plan = NULL;

    ck_assert_xm_fails(ap_plan_load("/nowhere/plan.json", &plan), XM_ERR_NOT_FOUND,
                       "cannot read /nowhere/plan.json: No such file");
    ck_assert_xm_fails(ap_plan_load("/", &plan), XM_ERR_INVALID_ARGUMENT, "cannot read /");
    fill_sample(&sample);
    ck_assert_xm_ok(ap_plan_create(&sample.params, &plan));
    ck_assert_xm_fails(ap_plan_save(plan, "/nowhere/plan.json"), XM_ERR_IO, "cannot write");
    ap_plan_destroy(plan);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, a_plan_survives_the_file);
    tcase_add_test(tcase, stages_recompute_one_by_one);
    tcase_add_test(tcase, a_plan_tells_how_its_model_was_read);
    tcase_add_test(tcase, digest_is_of_the_contents);
    tcase_add_test(tcase, documents_are_read_strictly);
    tcase_add_test(tcase, lists_are_lists);
    tcase_add_test(tcase, an_edited_file_without_digest_is_accepted);
    tcase_add_test(tcase, a_plan_without_links_is_accepted);
    tcase_add_test(tcase, contradictions_are_refused);
    tcase_add_test(tcase, files_that_cannot_be_used);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
