/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/transport/counters.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "comm/transport/counters_private.h"
#include "comm/worker/metrics.h"
#include "comm/transport/sim.h"
#include "xm_test.h"

enum { RANKS = 3 };

typedef struct {
    xm_sim_fabric_t *fabric;
    xm_transport_t *transport[RANKS];
    xm_counters_t *counters[RANKS];
} lab_t;

static void make(lab_t *lab)
{
    xm_sim_fabric_params_t params = {0};

    params.ranks = RANKS;
    ck_assert_xm_ok(xm_sim_fabric_create(&params, &lab->fabric));
    for (int r = 0; r < RANKS; ++r) {
        ck_assert_xm_ok(xm_transport_sim_create(lab->fabric, r, &lab->transport[r]));
        ck_assert_xm_ok(xm_counters_create(RANKS, &lab->counters[r]));
        xm_transport_sim_count(lab->transport[r], lab->counters[r]);
    }
}

static void end(lab_t *lab)
{
    for (int r = 0; r < RANKS; ++r) {
        xm_transport_destroy(lab->transport[r]);
        xm_counters_destroy(lab->counters[r]);
    }
    xm_sim_fabric_destroy(lab->fabric);
}

static void ignore(xm_op_t *op, xm_status_t status)
{
    (void)op;
    (void)status;
}

static xm_op_t operation(void)
{
    return (xm_op_t){.done = ignore};
}

/* Lets everything that can end, end. */
static void run(const lab_t *lab)
{
    bool more = true;

    while (more) {
        more = xm_sim_fabric_step(lab->fabric);
        for (int r = 0; r < RANKS; ++r) {
            more = xm_transport_progress(lab->transport[r]) > 0 || more;
        }
    }
}

static xm_peer_counts_t counts_of(const lab_t *lab, int rank, int peer)
{
    xm_peer_counts_t counts;

    xm_counters_peer(lab->counters[rank], peer, &counts);
    return counts;
}

START_TEST(messages_are_counted_at_both_ends)
{
    lab_t lab;
    static char bytes[1000], room[1000];
    xm_op_t send = operation(), receive = operation();
    xm_peer_counts_t counts;
    xm_nic_counts_t nic;

    make(&lab);
    for (int i = 0; i < 3; ++i) {
        ck_assert_int_eq(
            xm_transport_send(lab.transport[0], 1, 7, bytes, sizeof(bytes), NULL, &send),
            XM_IN_PROGRESS);
        counts = counts_of(&lab, 0, 1);
        ck_assert_uint_eq(xm_peer_counts_in_flight(&counts, XM_SENT), 1);
        ck_assert_int_eq(
            xm_transport_receive(lab.transport[1], 0, 7, room, sizeof(room), NULL, &receive),
            XM_IN_PROGRESS);
        run(&lab);
    }
    counts = counts_of(&lab, 0, 1);
    ck_assert_uint_eq(counts.posted[XM_SENT], 3);
    ck_assert_uint_eq(counts.ended[XM_SENT][XM_OUTCOME_OK], 3);
    ck_assert_uint_eq(counts.bytes[XM_SENT], 3000);
    ck_assert_uint_eq(counts.bytes[XM_RECEIVED], 0);
    ck_assert_uint_eq(xm_peer_counts_in_flight(&counts, XM_SENT), 0);
    counts = counts_of(&lab, 1, 0);
    ck_assert_uint_eq(counts.ended[XM_RECEIVED][XM_OUTCOME_OK], 3);
    ck_assert_uint_eq(counts.bytes[XM_RECEIVED], 3000);
    ck_assert_uint_eq(counts.posted[XM_SENT], 0);
    ck_assert_int_eq(xm_counters_nics(lab.counters[0]), 1);
    xm_counters_nic(lab.counters[0], 0, &nic);
    ck_assert_str_eq(nic.name, "sim");
    ck_assert_uint_eq(nic.pieces[XM_SENT], 3);
    ck_assert_uint_eq(nic.bytes[XM_SENT], 3000);
    ck_assert_uint_eq(nic.bytes[XM_RECEIVED], 0);
    xm_counters_nic(lab.counters[1], 0, &nic);
    ck_assert_uint_eq(nic.bytes[XM_RECEIVED], 3000);
    counts = counts_of(&lab, 0, 2);
    ck_assert_uint_eq(counts.posted[XM_SENT] + counts.posted[XM_RECEIVED], 0);
    end(&lab);
}
END_TEST

START_TEST(every_end_has_its_status)
{
    lab_t lab;
    static char bytes[100], room[100];
    xm_op_t send = operation(), receive = operation(), wrong = operation(), lost = operation();
    xm_peer_counts_t counts;
    xm_nic_counts_t nic;

    make(&lab);
    /* A message of another length than its receive. */
    (void)xm_transport_send(lab.transport[0], 1, 1, bytes, 100, NULL, &send);
    (void)xm_transport_receive(lab.transport[1], 0, 1, room, 50, NULL, &wrong);
    run(&lab);
    /* A receive that nobody wants any more. */
    (void)xm_transport_receive(lab.transport[1], 0, 2, room, 50, NULL, &receive);
    xm_transport_cancel(lab.transport[1], &receive);
    run(&lab);
    /* Posts that are refused; a peer that does not exist is nobody's. */
    ck_assert_int_lt(xm_transport_send(lab.transport[1], 0, 3, bytes, 0, NULL, &send), 0);
    ck_assert_int_lt(xm_transport_send(lab.transport[1], 99, 3, bytes, 1, NULL, &send), 0);
    ck_assert_int_lt(xm_transport_send(lab.transport[1], -1, 3, bytes, 1, NULL, &send), 0);
    /* A peer that dies. */
    (void)xm_transport_receive(lab.transport[1], 0, 4, room, 50, NULL, &lost);
    xm_sim_fabric_kill(lab.fabric, 0);
    run(&lab);
    counts = counts_of(&lab, 1, 0);
    ck_assert_uint_eq(counts.posted[XM_RECEIVED], 3);
    ck_assert_uint_eq(counts.ended[XM_RECEIVED][XM_OUTCOME_OK], 0);
    ck_assert_uint_eq(counts.ended[XM_RECEIVED][XM_OUTCOME_CORRUPT], 1);
    ck_assert_uint_eq(counts.ended[XM_RECEIVED][XM_OUTCOME_CANCELED], 1);
    ck_assert_uint_eq(counts.ended[XM_RECEIVED][XM_OUTCOME_PEER_DIED], 1);
    ck_assert_uint_eq(counts.bytes[XM_RECEIVED], 0);
    ck_assert_uint_eq(counts.refused[XM_SENT], 1);
    ck_assert_uint_eq(xm_peer_counts_in_flight(&counts, XM_RECEIVED), 0);
    xm_counters_nic(lab.counters[1], 0, &nic);
    ck_assert_uint_eq(nic.errors, 2);
    ck_assert_uint_eq(nic.pieces[XM_RECEIVED], 0);
    end(&lab);
}
END_TEST

START_TEST(peers_have_the_numbers_of_the_job)
{
    lab_t lab;
    static const int job_rank[] = {2, 1, 0};
    static char bytes[10], room[10];
    xm_op_t send = operation(), receive = operation();

    make(&lab);
    lab.transport[0]->job_rank = job_rank;
    (void)xm_transport_send(lab.transport[0], 2, 1, bytes, 10, NULL, &send);
    (void)xm_transport_receive(lab.transport[2], 0, 1, room, 10, NULL, &receive);
    run(&lab);
    xm_transport_count_copy(lab.transport[0], 2, 77);
    ck_assert_uint_eq(counts_of(&lab, 0, 0).bytes[XM_SENT], 10);
    ck_assert_uint_eq(counts_of(&lab, 0, 0).copied_bytes, 77);
    ck_assert_uint_eq(counts_of(&lab, 0, 0).copies, 1);
    ck_assert_uint_eq(counts_of(&lab, 0, 2).posted[XM_SENT], 0);
    end(&lab);
}
END_TEST

START_TEST(nics_of_one_name_are_one)
{
    xm_counters_t *counters;
    xm_nic_counts_t nic;
    char name[16];

    ck_assert_ptr_null(xm_counters_open_nic(NULL, "eth0", 0));
    xm_count_fragment(NULL, XM_SENT, 1, XM_OK);
    ck_assert_xm_ok(xm_counters_create(0, &counters));
    ck_assert_ptr_eq(xm_counters_open_nic(counters, "eth0", 8000),
                     xm_counters_open_nic(counters, "eth0", 8000));
    ck_assert_int_eq(xm_counters_nics(counters), 1);
    for (int i = 0; i < XM_COUNTERS_MAX_NICS + 3; ++i) {
        (void)snprintf(name, sizeof(name), "nic%d", i);
        xm_count_fragment(xm_counters_open_nic(counters, name, 0), XM_SENT, 1, XM_OK);
    }
    ck_assert_int_eq(xm_counters_nics(counters), XM_COUNTERS_MAX_NICS);
    xm_counters_nic(counters, XM_COUNTERS_MAX_NICS - 1, &nic);
    ck_assert_uint_eq(nic.pieces[XM_SENT], 5); /* its own, and those of the four after it */
    xm_counters_nic(counters, 0, &nic);
    ck_assert_uint_eq(nic.rate, 8000);
    xm_counters_destroy(counters);
}
END_TEST

/* XM_LOG=operations=trace: a line for every post and every end. */
START_TEST(operations_can_be_traced)
{
    lab_t lab;
    char path[] = "/tmp/xm_test_trace.XXXXXX", text[4096];
    static char bytes[30], room[30];
    xm_op_t send = operation(), receive = operation();
    int fd = mkstemp(path);
    FILE *file;
    size_t length;

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(setenv("XM_LOG_FILE", path, 1), 0);
    ck_assert_int_eq(setenv("XM_LOG", "error,operations=trace", 1), 0);
    make(&lab);
    (void)xm_transport_send(lab.transport[0], 1, 0x1f, bytes, 30, NULL, &send);
    (void)xm_transport_receive(lab.transport[1], 0, 0x1f, room, 30, NULL, &receive);
    run(&lab);
    end(&lab);
    file = fdopen(fd, "r");
    ck_assert_ptr_nonnull(file);
    length = fread(text, 1, sizeof(text) - 1, file);
    text[length] = '\0';
    (void)fclose(file);
    (void)unlink(path);
    ck_assert_ptr_nonnull(strstr(text, "send of 30 bytes, rank 0 with rank 1, tag 1f: posted\n"));
    ck_assert_ptr_nonnull(
        strstr(text, "receive of 30 bytes, rank 1 with rank 0, tag 1f: posted\n"));
    ck_assert_ptr_nonnull(strstr(text, "send of 30 bytes, rank 0 with rank 1, tag 1f: ended, "));
    ck_assert_ptr_nonnull(strstr(text, "receive of 30 bytes, rank 1 with rank 0, tag 1f: ended, "));
}
END_TEST

/* ---- another thread reads while the worker's counts ---- */

static atomic_bool stop;

static void *read_on(void *arg)
{
    const lab_t *lab = arg;
    uint64_t before = 0;

    while (!atomic_load(&stop)) {
        xm_peer_counts_t counts = counts_of(lab, 0, 1);
        xm_nic_counts_t nic;
        xm_rank_counts_t rank;

        /* Never more ends than posts, and never less than before. Posts may be newer than ends. */
        if (xm_peer_counts_in_flight(&counts, XM_SENT) > counts.posted[XM_SENT] ||
            counts.bytes[XM_SENT] < before) {
            return arg;
        }
        before = counts.bytes[XM_SENT];
        xm_counters_nic(lab->counters[0], 0, &nic);
        xm_counters_rank(lab->counters[0], &rank);
    }
    return NULL;
}

START_TEST(another_thread_may_read)
{
    lab_t lab;
    static char bytes[64], room[64];
    xm_op_t send = operation(), receive = operation();
    pthread_t reader;
    void *wrong;

    make(&lab);
    atomic_store(&stop, false);
    ck_assert_int_eq(pthread_create(&reader, NULL, read_on, &lab), 0);
    for (int i = 0; i < 2000; ++i) {
        (void)xm_transport_send(lab.transport[0], 1, 1, bytes, 64, NULL, &send);
        (void)xm_transport_receive(lab.transport[1], 0, 1, room, 64, NULL, &receive);
        run(&lab);
        xm_count_sleep(lab.counters[0], 5);
    }
    atomic_store(&stop, true);
    ck_assert_int_eq(pthread_join(reader, &wrong), 0);
    ck_assert_ptr_null(wrong);
    ck_assert_uint_eq(counts_of(&lab, 0, 1).bytes[XM_SENT], 2000 * 64);
    end(&lab);
}
END_TEST

/* ---- the file for Prometheus; its grammar is checked by test_metrics.py ---- */

static bool has_line(const char *text, const char *line)
{
    size_t length = strlen(line);

    for (const char *at = strstr(text, line); at != NULL; at = strstr(at + 1, line)) {
        if ((at == text || at[-1] == '\n') && at[length] == '\n') {
            return true;
        }
    }
    return false;
}

START_TEST(metrics_say_what_was_counted)
{
    lab_t lab;
    static char bytes[500], room[500];
    static const char *const hosts[] = {"a", "b \"quoted\\\"\n", "c"};
    xm_op_t send = operation(), receive = operation();
    char directory[] = "/tmp/xm_test_metrics.XXXXXX", pattern[64], path[64], text[32768];
    xm_metrics_params_t params = {
        .path = pattern, .interval = 10, .rank = 0, .transport = "sim", .host = hosts};
    xm_metrics_t *metrics;
    size_t length;
    FILE *file;

    make(&lab);
    ck_assert_ptr_nonnull(mkdtemp(directory));
    (void)snprintf(pattern, sizeof(pattern), "%s/%%h-%%r.prom", directory);
    (void)snprintf(path, sizeof(path), "%s/a-0.prom", directory);
    params.counters = lab.counters[0];
    (void)xm_transport_send(lab.transport[0], 1, 1, bytes, 500, NULL, &send);
    (void)xm_transport_receive(lab.transport[1], 0, 1, room, 500, NULL, &receive);
    run(&lab);
    ck_assert_xm_ok(xm_metrics_create(&params, &metrics));
    xm_metrics_tick(metrics, 1000);
    file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    length = fread(text, 1, sizeof(text) - 1, file);
    text[length] = '\0';
    (void)fclose(file);
    ck_assert(has_line(text, "# TYPE crossmesh_message_bytes_total counter"));
    ck_assert(has_line(
        text, "crossmesh_message_bytes_total{rank=\"0\",peer=\"1\",direction=\"send\"} 500"));
    ck_assert(has_line(text, "crossmesh_operations_total{rank=\"0\",peer=\"1\",direction=\"send\","
                             "status=\"ok\"} 1"));
    ck_assert(
        has_line(text, "crossmesh_nic_bytes_total{rank=\"0\",nic=\"sim\",direction=\"send\"} 500"));
    ck_assert(has_line(text, "crossmesh_peer_info{rank=\"0\",peer=\"1\",host=\"b "
                             "\\\"quoted\\\\\\\"\\n\"} 1"));
    ck_assert_ptr_null(strstr(text, "peer=\"2\""));
    /* Not due, then due. */
    ck_assert_int_eq(remove(path), 0);
    xm_metrics_tick(metrics, 9999999999);
    ck_assert_int_ne(remove(path), 0);
    xm_metrics_tick(metrics, xm_metrics_due(metrics));
    ck_assert_int_eq(remove(path), 0);
    ck_assert_int_eq(remove(directory), 0); /* nothing temporary is left */
    xm_metrics_destroy(metrics);
    end(&lab);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("counters");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, messages_are_counted_at_both_ends);
    tcase_add_test(tcase, every_end_has_its_status);
    tcase_add_test(tcase, peers_have_the_numbers_of_the_job);
    tcase_add_test(tcase, nics_of_one_name_are_one);
    tcase_add_test(tcase, operations_can_be_traced);
    tcase_add_test(tcase, another_thread_may_read);
    tcase_add_test(tcase, metrics_say_what_was_counted);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
