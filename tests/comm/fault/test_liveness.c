/* SPDX-License-Identifier: Apache-2.0 */
/* The rules on a virtual clock: whole jobs of detectors' rules without a socket, whose messages
 * take no time, get lost at random, or do not pass one way or the other. What is true is told by a
 * table of who reaches whom, never by the rules themselves. */
#include "comm/fault/liveness.h"

#include <math.h>
#include <stdlib.h>

#include "comm/base/random.h"
#include "xm_test.h"

enum { MOST = 24 };
static const int64_t second = 1000000000;

typedef struct lab lab_t;

typedef struct {
    lab_t *lab;
    int rank;
    xm_liveness_t *liveness;
    int64_t next;
    int asked[MOST];
    int findings[MOST];
    xm_finding_t finding[MOST];
    int64_t found_at[MOST], silent[MOST];
    int witness[MOST];
} node_t;

struct lab {
    int ranks;
    int host[MOST];
    bool reaches[MOST][MOST]; /* one way */
    bool stopped[MOST], ended[MOST];
    double loss; /* each way */
    xm_random_t random;
    int64_t now;
    node_t nodes[MOST];
};

static bool arrives(lab_t *lab, int from, int to)
{
    return lab->reaches[from][to] && !lab->stopped[to] && !lab->ended[to] &&
           (double)(xm_random_next(&lab->random) >> 11) * 0x1p-53 >= lab->loss;
}

static void on_ask(void *arg, int rank, uint64_t question, int about, bool urgent)
{
    node_t *node = arg;
    lab_t *lab = node->lab;
    bool hears = xm_liveness_hears(node->liveness, rank, lab->now);
    xm_liveness_t *other = lab->nodes[rank].liveness;

    (void)urgent;
    ++node->asked[rank];
    if (arrives(lab, node->rank, rank)) {
        xm_opinion_t opinion = XM_OPINION_NONE;

        xm_liveness_asked(other, node->rank, hears, lab->now);
        lab->nodes[rank].next = lab->now;
        if (about >= 0) {
            opinion = xm_liveness_testify(other, about, lab->now);
        }
        if (arrives(lab, rank, node->rank)) {
            ck_assert(
                xm_liveness_answered(node->liveness, rank, question, about, opinion, lab->now));
            ck_assert(
                !xm_liveness_answered(node->liveness, rank, question, about, opinion, lab->now));
        }
    }
}

static void on_call(void *arg, int rank)
{
    node_t *node = arg;

    if (node->lab->ended[rank] && node->lab->reaches[node->rank][rank] &&
        node->lab->reaches[rank][node->rank]) {
        xm_liveness_refused(node->liveness, rank, false, node->lab->now);
    }
}

static void on_finding(void *arg, int rank, xm_finding_t finding, int64_t silent_ns, int witness)
{
    node_t *node = arg;

    ++node->findings[rank];
    node->finding[rank] = finding;
    node->found_at[rank] = node->lab->now;
    node->silent[rank] = silent_ns;
    node->witness[rank] = witness;
}

/* A group in which everybody reaches everybody, @p per_host ranks on a host. */
static void lab_create(lab_t *lab, int ranks, int per_host)
{
    *lab = (lab_t){.ranks = ranks, .random = {.state = (uint64_t)ranks}};
    for (int rank = 0; rank < ranks; ++rank) {
        node_t *node = &lab->nodes[rank];

        *node = (node_t){.lab = lab, .rank = rank};
        lab->host[rank] = rank / per_host;
        ck_assert_xm_ok(xm_liveness_create(ranks, rank, second, true, &node->liveness));
        for (int other = 0; other < ranks; ++other) {
            lab->reaches[rank][other] = true;
            xm_liveness_set_host(node->liveness, other, other / per_host);
        }
    }
    for (int rank = 1; rank < ranks; ++rank) {
        xm_liveness_watch(lab->nodes[0].liveness, rank, true, 0);
        xm_liveness_watch(lab->nodes[rank].liveness, 0, true, 0);
    }
}

static void lab_destroy(lab_t *lab)
{
    for (int rank = 0; rank < lab->ranks; ++rank) {
        xm_liveness_destroy(lab->nodes[rank].liveness);
    }
}

/* Ticks of all ranks when they are due, until `end`. One that is stopped does not tick. */
static void run_until(lab_t *lab, int64_t end)
{
    for (;;) {
        int first = -1;

        for (int rank = 0; rank < lab->ranks; ++rank) {
            if (!lab->stopped[rank] && !lab->ended[rank] &&
                (first < 0 || lab->nodes[rank].next < lab->nodes[first].next)) {
                first = rank;
            }
        }
        if (first < 0 || lab->nodes[first].next > end) {
            lab->now = end;
            return;
        }
        lab->now = lab->nodes[first].next > lab->now ? lab->nodes[first].next : lab->now;
        lab->nodes[first].next = INT64_MAX;
        {
            node_t *node = &lab->nodes[first];
            xm_liveness_actions_t actions = {on_ask, on_call, on_finding, node};
            int64_t next = xm_liveness_tick(node->liveness, lab->now, &actions);

            ck_assert_int_gt(next, lab->now);
            node->next = next < node->next ? next : node->next;
        }
    }
}

static int count_findings(const lab_t *lab)
{
    int count = 0;

    for (int rank = 0; rank < lab->ranks; ++rank) {
        for (int other = 0; other < lab->ranks; ++other) {
            count += lab->nodes[rank].findings[other];
        }
    }
    return count;
}

/* Whenever a rank stops, it is found after 2.5 to 3.6 intervals, once, by two hosts; others are
 * asked once a second. */
START_TEST(silence_is_found_in_time)
{
    for (int64_t offset = 0; offset < second; offset += second / 16) {
        lab_t lab;

        lab_create(&lab, 6, 2);
        run_until(&lab, 10 * second + offset);
        lab.stopped[3] = true;
        run_until(&lab, 60 * second);
        ck_assert_int_eq(count_findings(&lab), 1);
        ck_assert_int_eq(lab.nodes[0].finding[3], XM_FINDING_SILENT);
        ck_assert_int_ge(lab.nodes[0].found_at[3] - 10 * second - offset, 5 * second / 2);
        ck_assert_int_le(lab.nodes[0].found_at[3] - 10 * second - offset, 18 * second / 5);
        ck_assert_int_ge(lab.nodes[0].silent[3], 7 * second / 2);
        ck_assert_int_ge(lab.nodes[0].witness[3], 4); /* of the third host */
        ck_assert_int_ge(lab.nodes[0].asked[1], 59);
        ck_assert_int_le(lab.nodes[0].asked[1], 62);
        ck_assert_int_eq(lab.nodes[1].asked[2], 0);
        lab_destroy(&lab);
    }
}
END_TEST

/* A process that has ended is found by the refusal of its host: at once when it is suspected. */
START_TEST(ended_processes_are_found_at_once)
{
    for (int suspected = 0; suspected < 2; ++suspected) {
        lab_t lab;

        lab_create(&lab, 4, 2);
        run_until(&lab, 10 * second + 7);
        lab.ended[2] = true;
        if (suspected != 0) {
            xm_liveness_suspect(lab.nodes[0].liveness, 2, lab.now);
            lab.nodes[0].next = lab.now;
        }
        run_until(&lab, 20 * second);
        ck_assert_int_eq(count_findings(&lab), 1);
        ck_assert_int_eq(lab.nodes[0].finding[2], XM_FINDING_CLOSED);
        ck_assert_int_le(lab.nodes[0].found_at[2] - 10 * second,
                         suspected != 0 ? second / 20 : 3 * second / 2);
        lab_destroy(&lab);
    }
}
END_TEST

/* A refusal by something else than the rank's host: the rank still answers. */
START_TEST(a_refusal_is_no_death_of_one_that_answers)
{
    lab_t lab;

    lab_create(&lab, 4, 2);
    for (int i = 1; i < 40; ++i) {
        run_until(&lab, i * second / 3);
        xm_liveness_refused(lab.nodes[0].liveness, 2, false, lab.now);
        xm_liveness_suspect(lab.nodes[0].liveness, 2, lab.now);
        lab.nodes[0].next = lab.now;
    }
    run_until(&lab, 20 * second);
    ck_assert_int_eq(count_findings(&lab), 0);
    lab_destroy(&lab);
}
END_TEST

/* Links that are down for less than two seconds, again and again. */
START_TEST(flaps_are_no_silence)
{
    lab_t lab;

    lab_create(&lab, 6, 2);
    for (int round = 0; round < 40; ++round) {
        for (int up = 0; up < 2; ++up) {
            for (int rank = 2; rank < 4; ++rank) {
                for (int other = 0; other < 6; ++other) {
                    lab.reaches[rank][other] = lab.reaches[other][rank] =
                        up != 0 || other / 2 == rank / 2;
                }
            }
            run_until(&lab, lab.now + (up != 0 ? second * 3 / 5 : second / 2 * (1 + round % 4)));
        }
    }
    ck_assert_int_eq(count_findings(&lab), 0);
    lab_destroy(&lab);
}
END_TEST

/* Half a second in which nothing passes, at any moment, is noticed by who heeds a rank, once; an
 * undisturbed hour has none, nor does it go on being asked often. */
START_TEST(who_is_heeded_has_no_gap_that_escapes)
{
    xm_random_t random = {.state = 7};
    xm_liveness_t *liveness;
    lab_t lab;
    int asked;

    lab_create(&lab, 6, 2);
    liveness = lab.nodes[0].liveness;
    ck_assert_uint_eq(xm_liveness_heed(liveness, 3, true), 0);
    for (unsigned round = 0; round < 100; ++round) {
        run_until(&lab, lab.now + second / 4 + (int64_t)(xm_random_next(&random) % 2000000000));
        ck_assert_uint_eq(xm_liveness_heed(liveness, 3, true), round);
        lab.reaches[3][0] = false;
        run_until(&lab, lab.now + second / 2);
        lab.reaches[3][0] = true;
    }
    run_until(&lab, lab.now + 3600 * second);
    asked = lab.nodes[0].asked[3];
    ck_assert_uint_eq(xm_liveness_heed(liveness, 3, false), 100);
    run_until(&lab, lab.now + 100 * second);
    ck_assert_int_le(lab.nodes[0].asked[3] - asked, 101);
    ck_assert_int_eq(count_findings(&lab), 0);
    lab_destroy(&lab);
}
END_TEST

/* A rank that was held up blames nobody for it, but still finds who is really silent. */
START_TEST(a_late_rank_blames_nobody)
{
    lab_t lab;

    lab_create(&lab, 5, 5);
    run_until(&lab, 5 * second);
    lab.stopped[0] = lab.stopped[3] = true;
    for (int rank = 1; rank < 5; ++rank) { /* they are not watched, and find what they have to */
        xm_liveness_watch(lab.nodes[rank].liveness, 0, false, lab.now);
    }
    run_until(&lab, 100 * second);
    /* Another of its threads may ask before the one that was held up has come round. */
    ck_assert_int_lt(xm_liveness_silence(lab.nodes[0].liveness, 3, lab.now), 2 * second);
    lab.stopped[0] = false;
    run_until(&lab, 102 * second);
    ck_assert_int_eq(count_findings(&lab), 0);
    run_until(&lab, 104 * second);
    ck_assert_int_eq(count_findings(&lab), 1);
    ck_assert_int_eq(lab.nodes[0].findings[3], 1);
    lab_destroy(&lab);
}
END_TEST

START_TEST(old_and_made_up_answers_count_nothing)
{
    lab_t lab;
    xm_liveness_t *liveness;

    lab_create(&lab, 2, 2);
    liveness = lab.nodes[0].liveness;
    run_until(&lab, 2 * second);
    lab.stopped[1] = true;
    for (int64_t end = 5 * second / 2; end <= 6 * second; end += second / 2) {
        uint64_t asked = (uint64_t)lab.nodes[0].asked[1];

        run_until(&lab, end);
        ck_assert(!xm_liveness_answered(liveness, 1, 0, -1, XM_OPINION_NONE, lab.now));
        ck_assert(!xm_liveness_answered(liveness, 1, 1, -1, XM_OPINION_NONE, lab.now));
        ck_assert(!xm_liveness_answered(liveness, 1, asked + 100, -1, XM_OPINION_NONE, lab.now));
        xm_liveness_asked(liveness, 1, false, lab.now); /* it does not hear this rank */
    }
    ck_assert_int_eq(lab.nodes[0].finding[1], XM_FINDING_SILENT);
    ck_assert_int_eq(count_findings(&lab), 1);
    lab_destroy(&lab);
    xm_liveness_destroy(NULL);
}
END_TEST

/* Bytes of the transport keep a rank alive whose questions and answers all get lost. */
START_TEST(every_sign_counts)
{
    lab_t lab;

    lab_create(&lab, 4, 2);
    run_until(&lab, 5 * second);
    lab.loss = 1.0;
    for (int i = 0; i < 30; ++i) {
        for (int rank = 1; rank < 4; ++rank) {
            xm_liveness_heard(lab.nodes[0].liveness, rank, lab.now);
            xm_liveness_asked(lab.nodes[rank].liveness, 0, true, lab.now);
        }
        run_until(&lab, lab.now + 2 * second);
    }
    ck_assert_int_eq(count_findings(&lab), 0);
    lab_destroy(&lab);
}
END_TEST

/* Who sleeps between questions learns late of bytes that came: they count from when they came, and
 * not at all where an answer came after them. */
START_TEST(a_sign_is_of_when_it_came)
{
    const int64_t silent = (int64_t)(XM_LIVENESS_SILENT * (double)second), came = 10 * second;
    lab_t lab;

    lab_create(&lab, 2, 2);
    run_until(&lab, came);
    lab.stopped[1] = true;
    run_until(&lab, came + second / 2);
    xm_liveness_heard(lab.nodes[0].liveness, 1, came + second / 100);
    xm_liveness_heard(lab.nodes[0].liveness, 1, came - 3 * second);
    run_until(&lab, came + second / 100 + silent - 1);
    ck_assert_int_eq(lab.nodes[0].findings[1], 0);
    run_until(&lab, came + second / 100 + silent + second / XM_LIVENESS_REPEATS);
    ck_assert_int_eq(lab.nodes[0].findings[1], 1);
    lab_destroy(&lab);
}
END_TEST

/* How often two ranks lose each other at a loss where that happens, against the probability that
 * all questions of a silence are lost; then the same probability for what has to be held: a
 * thousand ranks for a week at 1 %, 18 for ten minutes at 5 %. */
START_TEST(loss_does_what_was_calculated)
{
    const double loss = 0.45, both = 1.0 - (1.0 - loss) * (1.0 - loss);
    int questions = (int)(XM_LIVENESS_REPEATS * (XM_LIVENESS_SILENT - 1.0)), found = 0;
    double cycles = 0.0, most = pow(both, questions - 1), least = pow(both, questions + 2);
    const int64_t length = 60000;
    lab_t lab;

    lab_create(&lab, 2, 2);
    lab.loss = loss;
    xm_liveness_watch(lab.nodes[1].liveness, 0, false, 0);
    for (int64_t at = 1; at < length; ++at) {
        run_until(&lab, at * second);
        if (lab.nodes[0].findings[1] > 0) {
            ++found;
            lab.nodes[0].findings[1] = 0;
            xm_liveness_heard(lab.nodes[0].liveness, 1, lab.now);
            lab.nodes[0].next = lab.now;
        }
    }
    /* A cycle is a second, and what it takes longer until a question is answered. */
    cycles = (double)length / (1.0 + (1.0 / (1.0 - both) - 1.0) / XM_LIVENESS_REPEATS);
    (void)printf("45 %% lost: %d silences, calculated %.0f to %.0f\n", found, cycles * least,
                 cycles * most);
    ck_assert_int_ge(found, (int)(cycles * least * 0.7));
    ck_assert_int_le(found, (int)(cycles * most * 1.3));
    ck_assert_double_lt(2 * 999 * 604800.0 * pow(1.0 - 0.99 * 0.99, questions), 1e-20);
    ck_assert_double_lt(2 * 17 * 600.0 * pow(1.0 - 0.95 * 0.95, questions), 1e-12);
    lab_destroy(&lab);
}
END_TEST

/* Eighteen ranks of three hosts, ten minutes, 5 %; and again with a fifth of everything lost. */
START_TEST(a_lossy_network_kills_nobody)
{
    static const double losses[] = {0.05, 0.2};

    for (int i = 0; i < 2; ++i) {
        lab_t lab;

        lab_create(&lab, 18, 6);
        lab.loss = losses[i];
        run_until(&lab, 600 * second);
        ck_assert_int_eq(count_findings(&lab), 0);
        lab_destroy(&lab);
    }
}
END_TEST

/* Random jobs and failures, one after the other at random times. Who is named must be unreachable,
 * to and fro, for the one who says so and for somebody of a third host; a rank says that it is
 * alone when it is; and who cannot be reached by one that watches it is found. */
static bool two_way(const lab_t *lab, int a, int b)
{
    return lab->reaches[a][b] && lab->reaches[b][a] && !lab->stopped[a] && !lab->stopped[b];
}

static void cut(lab_t *lab, xm_random_t *random)
{
    int kind = (int)(xm_random_next(random) % 5);
    int victim = (int)(xm_random_next(random) % (uint64_t)lab->ranks);
    int other = (int)(xm_random_next(random) % (uint64_t)lab->ranks);

    if (kind == 4) {
        lab->stopped[victim] = true;
        return;
    }
    for (int rank = 0; rank < lab->ranks; ++rank) {
        for (int far = 0; far < lab->ranks; ++far) {
            bool hit = lab->host[rank] == lab->host[victim] && lab->host[far] != lab->host[victim];

            if (hit && (kind != 3 || lab->host[far] == lab->host[other])) {
                lab->reaches[rank][far] = lab->reaches[rank][far] && kind == 0; /* 0: deaf */
                lab->reaches[far][rank] = lab->reaches[far][rank] && kind == 1; /* 1: mute */
            }
        }
    }
}

static void check_finding(const lab_t *lab, int rank, int about, int number)
{
    const node_t *node = &lab->nodes[rank];
    bool third = false, witness = false, alone = true;

    for (int other = 0; other < lab->ranks; ++other) {
        if (lab->host[other] != lab->host[rank]) {
            alone = alone && !two_way(lab, rank, other);
            third = third || lab->host[other] != lab->host[about];
            witness = witness || (lab->host[other] != lab->host[about] &&
                                  two_way(lab, rank, other) && !two_way(lab, other, about));
        }
    }
    ck_assert_msg(!two_way(lab, rank, about), "job %d: rank %d blames rank %d, which it reaches",
                  number, rank, about);
    switch (node->finding[about]) {
    case XM_FINDING_SILENT:
        ck_assert_msg(!third || witness, "job %d: rank %d blames rank %d without a witness", number,
                      rank, about);
        break;
    case XM_FINDING_CUT:
        ck_assert_msg(!lab->stopped[about], "job %d: rank %d is stopped", number, about);
        break;
    case XM_FINDING_ALONE:
        ck_assert_msg(alone, "job %d: rank %d is not alone", number, rank);
        break;
    default:
        ck_abort_msg("job %d: nobody has ended", number);
    }
}

START_TEST(nobody_is_blamed_for_what_others_suffer)
{
    xm_random_t random = {.state = 2026};
    int findings[4] = {0};

    for (int number = 0; number < 700; ++number) {
        int per_host = 1 + (int)(xm_random_next(&random) % 3);
        int hosts = 1 + (int)(xm_random_next(&random) % 6);
        lab_t lab;

        lab_create(&lab, hosts * per_host, per_host);
        lab.random.state = (uint64_t)number;
        lab.loss = number % 2 == 0 ? 0.0 : 0.02;
        run_until(&lab, 3 * second + (int64_t)(xm_random_next(&random) % 1000000000));
        cut(&lab, &random);
        run_until(&lab, lab.now + 8 * second);
        for (int rank = 0; rank < lab.ranks; ++rank) {
            for (int other = 0; other < lab.ranks; ++other) {
                if (lab.nodes[rank].findings[other] > 0) {
                    check_finding(&lab, rank, other, number);
                    ++findings[lab.nodes[rank].finding[other]];
                }
                ck_assert_int_le(lab.nodes[rank].findings[other], 1);
                if ((rank == 0) != (other == 0) && !lab.stopped[rank]) {
                    ck_assert_msg(two_way(&lab, rank, other) || lab.nodes[rank].findings[other] > 0,
                                  "job %d: rank %d has not found that it has lost rank %d", number,
                                  rank, other);
                }
            }
        }
        lab_destroy(&lab);
    }
    (void)printf("findings: %d silent, %d cut, %d alone\n", findings[XM_FINDING_SILENT],
                 findings[XM_FINDING_CUT], findings[XM_FINDING_ALONE]);
    ck_assert_int_gt(findings[XM_FINDING_SILENT], 100);
    ck_assert_int_gt(findings[XM_FINDING_CUT], 100);
    ck_assert_int_gt(findings[XM_FINDING_ALONE], 100);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("liveness");
    TCase *tcase = tcase_create("virtual clock");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, silence_is_found_in_time);
    tcase_add_test(tcase, ended_processes_are_found_at_once);
    tcase_add_test(tcase, a_refusal_is_no_death_of_one_that_answers);
    tcase_add_test(tcase, flaps_are_no_silence);
    tcase_add_test(tcase, who_is_heeded_has_no_gap_that_escapes);
    tcase_add_test(tcase, a_late_rank_blames_nobody);
    tcase_add_test(tcase, old_and_made_up_answers_count_nothing);
    tcase_add_test(tcase, every_sign_counts);
    tcase_add_test(tcase, a_sign_is_of_when_it_came);
    tcase_add_test(tcase, loss_does_what_was_calculated);
    tcase_add_test(tcase, a_lossy_network_kills_nobody);
    tcase_add_test(tcase, nobody_is_blamed_for_what_others_suffer);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
