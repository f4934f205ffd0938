/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

enum { PLANS = 96, THREADS = 8, PROCESSES = 4, DIGEST = 33 };

static const char *program; /* its own path, to run again */

/* Problems and parameters, every strategy with every scheduler. */
static random_batch_t *create_batches(void)
{
    random_batch_t *batches = calloc(PLANS, sizeof(*batches));
    random_t random = {51};

    ck_assert_ptr_nonnull(batches);
    for (int i = 0; i < PLANS; ++i) {
        random_batch_create(&random, &batches[i]);
        batches[i].params.strategy = (xm_strategy_t)(i % XM_STRATEGY_COUNT);
        batches[i].params.scheduler = (xm_scheduler_t)(i / XM_STRATEGY_COUNT % XM_SCHEDULER_COUNT);
    }
    return batches;
}

static void destroy_batches(random_batch_t *batches)
{
    for (int i = 0; i < PLANS; ++i) {
        random_batch_destroy(&batches[i]);
    }
    free(batches);
}

/* "failed" when there is no plan: threads leave the asserting to the test. */
static void digest_of(const random_batch_t *batch, char *digest)
{
    xm_plan_t *plan;

    if (xm_plan_create(&batch->params, &plan) != XM_OK) {
        (void)snprintf(digest, DIGEST, "failed");
        return;
    }
    (void)snprintf(digest, DIGEST, "%s", xm_plan_digest(plan));
    xm_plan_destroy(plan);
}

static void compute(const random_batch_t *batches, char digests[][DIGEST])
{
    for (int i = 0; i < PLANS; ++i) {
        digest_of(&batches[i], digests[i]);
    }
}

static void compare(const random_batch_t *batches, char digests[][DIGEST], char expected[][DIGEST])
{
    for (int i = 0; i < PLANS; ++i) {
        ck_assert_str_ne(digests[i], "failed");
        ck_assert_msg(strcmp(digests[i], expected[i]) == 0, "%s, not %s: %s", digests[i],
                      expected[i], random_batch_text(&batches[i]));
    }
}

START_TEST(equal_in_a_hundred_runs)
{
    random_batch_t *batches = create_batches();
    char expected[PLANS][DIGEST], digests[PLANS][DIGEST];

    compute(batches, expected);
    for (int run = 0; run < xm_test_rounds(100); ++run) {
        compute(batches, digests);
        compare(batches, digests, expected);
    }
    destroy_batches(batches);
}
END_TEST

typedef struct {
    pthread_t thread;
    const random_batch_t *batches;
    int first;
    char digests[PLANS][DIGEST];
} worker_t;

/* Each thread goes through the plans from another one on. */
static void *work(void *argument)
{
    worker_t *worker = argument;

    for (int k = 0; k < PLANS; ++k) {
        int i = (worker->first + k) % PLANS;

        digest_of(&worker->batches[i], worker->digests[i]);
    }
    return NULL;
}

START_TEST(equal_in_concurrent_threads)
{
    random_batch_t *batches = create_batches();
    worker_t *workers = calloc(THREADS, sizeof(*workers));
    char expected[PLANS][DIGEST];

    ck_assert_ptr_nonnull(workers);
    compute(batches, expected);
    for (int round = 0; round < xm_test_rounds(10); ++round) {
        for (int t = 0; t < THREADS; ++t) {
            workers[t].batches = batches;
            workers[t].first = t % 2 * (round + t);
            ck_assert_int_eq(pthread_create(&workers[t].thread, NULL, work, &workers[t]), 0);
        }
        for (int t = 0; t < THREADS; ++t) {
            ck_assert_int_eq(pthread_join(workers[t].thread, NULL), 0);
            compare(batches, workers[t].digests, expected);
        }
    }
    free(workers);
    destroy_batches(batches);
}
END_TEST

static void write_digests(FILE *file)
{
    random_batch_t *batches = create_batches();
    char digests[PLANS][DIGEST];

    ck_assert_ptr_nonnull(file);
    compute(batches, digests);
    for (int i = 0; i < PLANS; ++i) {
        ck_assert_int_ge(fprintf(file, "%s\n", digests[i]), 0);
    }
    ck_assert_int_eq(fclose(file), 0);
    destroy_batches(batches);
}

/* A forked child shares the parent's memory as it lies. */
static void fork_child(const char *path)
{
    pid_t child = fork();
    int status;

    ck_assert_int_ge(child, 0);
    if (child == 0) {
        write_digests(fopen(path, "w"));
        _exit(EXIT_SUCCESS);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}

/* A new program lies elsewhere, and its fresh memory is filled with another byte. */
static void run_anew(const char *path, int byte)
{
    char command[4400];

    (void)snprintf(command, sizeof(command), "MALLOC_PERTURB_=%d DIGESTS='%s' '%s'", byte, path,
                   program);
    ck_assert_int_eq(system(command), 0);
}

/* What the new program does. */
START_TEST(write_for_the_parent)
{
    write_digests(fopen(getenv("DIGESTS"), "w"));
}
END_TEST

static void read_digests(const char *path, char digests[][DIGEST])
{
    char line[DIGEST + 1]; /* with the end of the line */
    FILE *file = fopen(path, "r");

    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < PLANS; ++i) {
        ck_assert_ptr_nonnull(fgets(line, sizeof(line), file));
        (void)snprintf(digests[i], DIGEST, "%.32s", line);
    }
    (void)fclose(file);
}

START_TEST(equal_in_other_processes)
{
    random_batch_t *batches = create_batches();
    char expected[PLANS][DIGEST], digests[PLANS][DIGEST], path[] = "/tmp/xm-digests-XXXXXX";
    int file = mkstemp(path);

    ck_assert_int_ge(file, 0);
    (void)close(file);
    compute(batches, expected);
    for (int p = 0; p < PROCESSES; ++p) {
        if (p % 2 == 0) {
            fork_child(path);
        } else {
            run_anew(path, 85 * p);
        }
        read_digests(path, digests);
        compare(batches, digests, expected);
        ck_assert_int_eq(truncate(path, 0), 0);
    }
    ck_assert_int_eq(unlink(path), 0);
    destroy_batches(batches);
}
END_TEST

int main(int count, char **arguments)
{
    Suite *suite = suite_create("determinism");
    TCase *tcase = tcase_create("all");

    (void)count;
    program = arguments[0];
    tcase_set_timeout(tcase, 600);
    if (getenv("DIGESTS") != NULL) {
        tcase_add_test(tcase, write_for_the_parent);
    } else {
        tcase_add_test(tcase, equal_in_a_hundred_runs);
        tcase_add_test(tcase, equal_in_concurrent_threads);
        tcase_add_test(tcase, equal_in_other_processes);
    }
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
