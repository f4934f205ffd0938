/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's tuner: what it answers from a cluster profile, and that it leaves everything else alone.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/profile/cluster_profile.h"
#include "plugins/nccl/tuner_model.h"
#include "tests/plugins/nccl/real_nccl.h"
#include "xm_test.h"

static char last_line[1024];
static int lines;

static void __attribute__((format(printf, 5, 6)))
take_line(int level, unsigned long subjects, const char *file, int line, const char *format, ...)
{
    va_list arguments;

    (void)level;
    (void)subjects;
    (void)file;
    (void)line;
    va_start(arguments, format);
    (void)vsnprintf(last_line, sizeof(last_line), format, arguments);
    va_end(arguments);
    ++lines;
}

/* The kind of numbers that NCCL says of itself: what a step costs over the network, microseconds.
 */
static nccl_constants_v5_t constants_of_nccl(void)
{
    static const double steps[2][NCCL_PROTOCOLS] = {{5.0, 8.5, 14.0}, {2.5, 4.0, 14.0}};
    nccl_constants_v5_t constants;

    memset(&constants, 0, sizeof(constants));
    for (int algorithm = 0; algorithm < 2; ++algorithm) {
        for (int protocol = 0; protocol < NCCL_PROTOCOLS; ++protocol) {
            constants.link_latency[NCCL_LINK_NETWORK][algorithm][protocol] =
                steps[algorithm][protocol];
        }
    }
    return constants;
}

static xm_cluster_profile_t *lab(void)
{
    xm_cluster_profile_t *profile;

    ck_assert_xm_ok(xm_cluster_profile_load(
        xm_test_source_path("tests/fixtures/profiles/lab-2x4.json"), &profile));
    return profile;
}

/* The formulas, by hand, for 8 ranks on 2 hosts: 20.01 us and 1.195 GB/s between them, 4.001 us
 * inside. */
START_TEST(formulas)
{
    xm_cluster_profile_t *profile = lab();
    tuner_model_t model;
    double expected;

    tuner_model_init(&model, profile, 8, 2, NULL);
    expected = 2 * 20.01e-6 + 12 * 4.001e-6 + 2.0 * 7 / 8 * 1e6 / 1.195e9;
    ck_assert_double_eq_tol(
        tuner_model_seconds(&model, NCCL_ALL_REDUCE, NCCL_RING, NCCL_SIMPLE, 1e6, 1), expected,
        1e-12);
    expected = 20.01e-6 + 6 * 4.001e-6 + 7.0 / 8 * 1e6 / (1.195e9 / 2);
    ck_assert_double_eq_tol(
        tuner_model_seconds(&model, NCCL_ALL_GATHER, NCCL_RING, NCCL_LL, 1e6, 1), expected, 1e-12);
    expected = 2 * 20.01e-6 + 6 * 4.001e-6 + 2 / 0.92 * 1e6 / (1.195e9 * 120 / 128);
    ck_assert_double_eq_tol(
        tuner_model_seconds(&model, NCCL_ALL_REDUCE, NCCL_TREE, NCCL_LL128, 1e6, 1), expected,
        1e-12);
    ck_assert_double_lt(tuner_model_seconds(&model, NCCL_ALL_GATHER, NCCL_TREE, NCCL_LL, 1e6, 1),
                        0);
    ck_assert_double_lt(tuner_model_seconds(&model, NCCL_ALL_REDUCE, 4, NCCL_SIMPLE, 1e6, 1), 0);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Where NCCL itself was measured on the axis, the cheapest combination takes what was measured;
 * another library's curve changes nothing. */
START_TEST(measured_curve)
{
    static const xm_curve_point_t points[] = {
        {1024, 200e-6}, {1 << 20, 4e-3}, {1 << 26, 256e-3}, {1 << 28, 1024e-3}};
    xm_collective_curve_t curve = {.kind = XM_ALL_REDUCE,
                                   .hosts = 2,
                                   .devices_per_host = 4,
                                   .groups_per_host = 1,
                                   .library = _i == 0 ? "NCCL 2.28.9" : "Open MPI 4.1.4",
                                   .points = points,
                                   .count = 4};
    xm_cluster_profile_t *profile = lab(), *extended;
    tuner_model_t plain, model;
    double first = 1e9, last = 1e9;

    ck_assert_xm_ok(xm_cluster_profile_add_collectives(profile, &curve, 1, "test", &extended));
    tuner_model_init(&plain, profile, 8, 2, NULL);
    tuner_model_init(&model, extended, 8, 2, NULL);
    if (_i == 1) {
        ck_assert_mem_eq(&plain, &model, sizeof(model));
    } else {
        for (int algorithm = 0; algorithm < 2; ++algorithm) {
            for (int protocol = 0; protocol < NCCL_PROTOCOLS; ++protocol) {
                double begin =
                    tuner_model_seconds(&model, NCCL_ALL_REDUCE, algorithm, protocol, 1024, 1);
                double end =
                    tuner_model_seconds(&model, NCCL_ALL_REDUCE, algorithm, protocol, 1 << 28, 1);

                first = begin < first ? begin : first;
                last = end < last ? end : last;
            }
        }
        ck_assert_double_eq_tol(first / 200e-6, 1, 0.03);
        ck_assert_double_eq_tol(last / 1024e-3, 1, 0.03);
        /* Other collectives were not measured. */
        ck_assert_double_eq(
            tuner_model_seconds(&model, NCCL_ALL_GATHER, NCCL_RING, NCCL_SIMPLE, 1e6, 1),
            tuner_model_seconds(&plain, NCCL_ALL_GATHER, NCCL_RING, NCCL_SIMPLE, 1e6, 1));
    }
    xm_cluster_profile_destroy(extended);
    xm_cluster_profile_destroy(profile);
}
END_TEST

static const nccl_tuner_v5_t *tuner;
static void *library;

static void open_tuner(void)
{
    library = dlopen("libnccl-net-crossmesh.so", RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(library != NULL, "%s", dlerror());
    tuner = getenv("NCCL_LIBRARY") != NULL ? real_nccl_tuner(getenv("NCCL_LIBRARY"), library)
                                           : dlsym(library, "ncclTunerPlugin_v5");
    ck_assert_ptr_nonnull(tuner);
    ck_assert_str_eq(tuner->name, "crossmesh");
    lines = 0;
}

static void close_tuner(void)
{
    ck_assert_int_eq(dlclose(library), 0);
}

/* The table as NCCL gives it: its own predictions, and what it forbids. */
static void fill(float table[NCCL_ALGORITHMS][NCCL_PROTOCOLS])
{
    for (int algorithm = 0; algorithm < NCCL_ALGORITHMS; ++algorithm) {
        for (int protocol = 0; protocol < NCCL_PROTOCOLS; ++protocol) {
            table[algorithm][protocol] = algorithm <= NCCL_RING ? 100.0F : NCCL_FORBIDDEN;
        }
    }
}

/* What is taken: algorithm * 3 + protocol; -1: NCCL's choice stays. */
static int ask(void *context, int collective, size_t bytes,
               float table[NCCL_ALGORITHMS][NCCL_PROTOCOLS])
{
    float before[NCCL_ALGORITHMS * NCCL_PROTOCOLS], after[NCCL_ALGORITHMS * NCCL_PROTOCOLS];
    int channels = 77, pick = -1;

    memcpy(before, table, sizeof(before));
    ck_assert_int_eq(tuner->collective(context, collective, bytes, 1, (float **)(void *)table,
                                       NCCL_ALGORITHMS, NCCL_PROTOCOLS, 0, &channels),
                     NCCL_OK);
    ck_assert_int_eq(channels, 77);
    memcpy(after, table, sizeof(after));
    for (int i = 0; i < NCCL_ALGORITHMS * NCCL_PROTOCOLS; ++i) {
        if (after[i] != before[i]) {
            ck_assert(pick < 0 && after[i] == 0);
            pick = i;
        }
    }
    return pick;
}

static void *start(size_t ranks, size_t nodes, nccl_constants_v5_t *constants)
{
    nccl_domains_v5_t domains = {.count = (int)nodes, .fewest = 1, .most = 1};
    void *context = &domains;

    ck_assert_int_eq(tuner->init(&context, 1, ranks, nodes, take_line, &domains, constants),
                     NCCL_OK);
    return context;
}

/* Many hosts: a tree while latency counts, a ring when bytes do; protocols likewise. */
START_TEST(answers)
{
    float table[NCCL_ALGORITHMS][NCCL_PROTOCOLS];
    nccl_constants_v5_t constants = constants_of_nccl();
    void *context;

    ck_assert_int_eq(
        setenv("XM_PROFILE", xm_test_source_path("tests/fixtures/profiles/lab-2x4.json"), 1), 0);
    open_tuner();
    context = start(128, 32, &constants);
    ck_assert_msg(strstr(last_line, "20.0 us, 1.20 GB/s") != NULL, "%s", last_line);
    /* NCCL's own model gets the measured latency. */
    ck_assert_double_eq_tol(constants.link_latency[NCCL_LINK_NETWORK][NCCL_RING][NCCL_LL], 20.01,
                            0.001);
    ck_assert_double_eq_tol(constants.link_latency[NCCL_LINK_NETWORK][NCCL_TREE][NCCL_SIMPLE],
                            20.01 + 9, 0.001);
    fill(table);
    ck_assert_int_eq(ask(context, NCCL_ALL_REDUCE, 1024, table),
                     NCCL_TREE * NCCL_PROTOCOLS + NCCL_LL);
    fill(table);
    ck_assert_int_eq(ask(context, NCCL_ALL_REDUCE, (size_t)1 << 32, table),
                     NCCL_RING * NCCL_PROTOCOLS + NCCL_SIMPLE);
    fill(table);
    ck_assert_int_eq(ask(context, NCCL_ALL_GATHER, 1024, table),
                     NCCL_RING * NCCL_PROTOCOLS + NCCL_LL);
    fill(table);
    ck_assert_int_eq(ask(context, NCCL_REDUCE_SCATTER, (size_t)1 << 30, table),
                     NCCL_RING * NCCL_PROTOCOLS + NCCL_SIMPLE);
    /* What NCCL forbids is not taken. */
    fill(table);
    table[NCCL_TREE][NCCL_LL] = table[NCCL_RING][NCCL_LL] = NCCL_FORBIDDEN;
    ck_assert_int_eq(ask(context, NCCL_ALL_REDUCE, 1024, table),
                     NCCL_TREE * NCCL_PROTOCOLS + NCCL_LL128);
    /* What the model does not know stays NCCL's when NCCL thinks it is best. */
    fill(table);
    table[4][NCCL_SIMPLE] = 50;
    ck_assert_int_eq(ask(context, NCCL_ALL_REDUCE, 1024, table), -1);
    fill(table);
    table[4][NCCL_SIMPLE] = 200;
    ck_assert_int_ge(ask(context, NCCL_ALL_REDUCE, 1024, table), 0);
    /* A collective of a later NCCL. */
    fill(table);
    ck_assert_int_eq(ask(context, 9, 1024, table), -1);
    ck_assert_int_eq(tuner->finalize(context), NCCL_OK);
    close_tuner();
}
END_TEST

/* Without a profile, with a broken one, and on one host: said once, and NCCL's choice stays. */
START_TEST(silence)
{
    static const struct {
        const char *path;
        size_t nodes;
        const char *sentence;
    } rows[] = {{NULL, 2, "XM_PROFILE names no cluster profile"},
                {"/nonexistent/cluster.json", 2, "/nonexistent/cluster.json"},
                {"/dev/null", 2, "/dev/null"},
                {NULL, 1, "one host"}};
    float table[NCCL_ALGORITHMS][NCCL_PROTOCOLS];
    nccl_constants_v5_t constants = constants_of_nccl(), before = constants;

    if (rows[_i].path != NULL) {
        ck_assert_int_eq(setenv("XM_PROFILE", rows[_i].path, 1), 0);
    }
    open_tuner();
    for (int communicator = 0; communicator < 3; ++communicator) {
        void *context = start(8, rows[_i].nodes, &constants);

        ck_assert_ptr_null(context);
        fill(table);
        ck_assert_int_eq(ask(context, NCCL_ALL_REDUCE, 1024, table), -1);
        ck_assert_int_eq(tuner->finalize(context), NCCL_OK);
    }
    ck_assert_int_eq(lines, 1);
    ck_assert_msg(strstr(last_line, rows[_i].sentence) != NULL, "'%s' lacks '%s'", last_line,
                  rows[_i].sentence);
    ck_assert_mem_eq(&constants, &before, sizeof(before));
    close_tuner();
}
END_TEST

int main(void)
{
    const char *nccl = getenv("NCCL_LIBRARY");
    TCase *model, *table;
    Suite *suite;

    if (nccl != NULL && !real_nccl_is_known(nccl)) {
        return 77;
    }
    suite = suite_create("nccl tuner");
    model = tcase_create("model");
    table = tcase_create("table");
    tcase_add_test(model, formulas);
    tcase_add_loop_test(model, measured_curve, 0, 2);
    tcase_add_test(table, answers);
    tcase_add_loop_test(table, silence, 0, 4);
    suite_add_tcase(suite, model);
    suite_add_tcase(suite, table);
    return xm_test_run(suite);
}
