/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar solve: the solver on its own, on a cost function network in the format of the ASPLOS'25
 * contest. The contest gives a file and a number of seconds and reads the last line of standard
 * output, so the result must be out before the time is over, however good it is then, and the time
 * that reading the file takes counts too.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli_support.h"
#include "comm/base.h"
#include "planner/solver/network.h"
#include "planner/solver.h"
#include "planner/cli/command.h"

static const char program[] = "autopar solve";
static const char summary[] =
    "Chooses one strategy per node of a JSON problem (may be gzipped) within the "
    "given time; the last line of output is the list of strategies.";

typedef struct solve_options {
    int threads, seed;
    double work;
    bool quiet;
    xm_cli_json_t json;
    const char *certificate;
} solve_options_t;

/* Progress goes to standard error, since the contest reads standard output. Before the first
 * solution there is no gap to print. */
static void show(void *context, const ap_cfn_progress_t *progress)
{
    (void)context;
    if (progress->cost < HUGE_VAL) {
        (void)fprintf(stderr, "%7.1f s  cost %.0f  bound %.0f  gap %.3f %%  nodes %lld\n",
                      progress->seconds, progress->cost, progress->bound,
                      100.0 * (progress->cost - progress->bound) /
                          (progress->cost > 1.0 ? progress->cost : 1.0),
                      (long long)progress->nodes);
    } else {
        (void)fprintf(stderr, "%7.1f s  no solution yet  bound %.0f\n", progress->seconds,
                      progress->bound);
    }
}

/* Prints the list of strategies on the last line, as the contest wants it; the lines before it
 * begin with '#'. A proof and a repeatable choice are told apart: another run may end at a
 * different solution of the same cost. */
static void print_result(const ap_cfn_t *cfn, const ap_cfn_result_t *result, const int *choice)
{
    char cost[AP_CFN_TOTAL_TEXT], peak[AP_CFN_TOTAL_TEXT];

    (void)printf("# %s: %zu nodes, %zu edges; presolved to %d variables, %d links, %d times\n",
                 cfn->name[0] != '\0' ? cfn->name : "problem", cfn->nodes, cfn->edges,
                 result->variables, result->links, result->times);
    (void)printf("# cost %s, bound %.0f%s, peak usage %s", ap_cfn_format(result->value.cost, cost),
                 result->bound,
                 result->repeatable ? " (proved optimal)"
                 : result->optimal && result->counted
                     ? " (proved optimal; the seed chooses the same again)"
                 : result->optimal ? " (proved optimal; another run may choose its equal)"
                 : result->counted ? " (ended by its work: the seed chooses the same again)"
                                   : " (ended by time: another run may choose otherwise)",
                 ap_cfn_format(result->value.peak, peak));
    if (cfn->limited) {
        (void)printf(" of %lld", (long long)cfn->limit);
    }
    (void)printf(", %.2f s\n[", result->seconds);
    for (size_t node = 0; node < cfn->nodes; ++node) {
        (void)printf("%s%d", node > 0 ? ", " : "", choice[node]);
    }
    (void)printf("]\n");
}

/* Writes a cost or usage as an integer, or as a real where it does not fit into the 63 bits of a
 * JSON integer: sums are kept in a wider type. */
static json_t *total_json(ap_cfn_total_t total)
{
    return total <= INT64_MAX ? json_integer((json_int_t)total) : json_real((double)total);
}

static xm_status_t give_json(const xm_cli_json_t *json, const ap_cfn_t *cfn,
                             const ap_cfn_result_t *result, const int *choice)
{
    json_t *list = json_array(), *document;
    char name[sizeof(cfn->name)];

    for (size_t node = 0; node < cfn->nodes; ++node) {
        (void)json_array_append_new(list, json_integer(choice[node]));
    }
    document = json_pack(
        "{s:i, s:s, s:I, s:I, s:i, s:i, s:i, s:o, s:f, s:b, s:b, s:o, s:f, s:o}", "version", 1,
        "name", xm_text_copy(cfn->name, name, sizeof(name)), "nodes", (json_int_t)cfn->nodes,
        "edges", (json_int_t)cfn->edges, "variables", result->variables, "links", result->links,
        "times", result->times, "cost", total_json(result->value.cost), "bound", result->bound,
        "optimal", result->optimal, "repeatable", result->repeatable || result->counted,
        "peak_usage", total_json(result->value.peak), "solver_s", result->seconds, "choice", list);
    if (document != NULL && cfn->limited) {
        (void)json_object_set_new(document, "usage_limit", json_integer(cfn->limit));
    }
    return xm_cli_give_json(json, document);
}

/* One thread is limited by work that takes less than the time, so that the clock, which differs
 * from run to run, need not end it. */
static const double work_part = 0.8;

/* Gives what is left of the time for the work itself. The given time is for everything, also for
 * checking and printing at the end, for which this keeps back 0.3 s and 1.5 %, but never more than
 * a fifth: a short limit must leave the solver most of its time. */
static double time_left(double seconds, double used)
{
    double end = 0.3 + 0.015 * seconds;

    return seconds - used - (end < 0.2 * seconds ? end : 0.2 * seconds);
}

/* The clock starts before the file is opened, and reading is itself limited by the time: a file
 * that takes too long to read ends with an error in time instead of an answer too late. */
static xm_status_t run(const xm_cli_t *cli, void *context)
{
    const char *path = ap_command_argument(cli, 0);
    const solve_options_t *o = context;
    ap_cfn_options_t options = AP_CFN_OPTIONS_INIT;
    ap_cfn_result_t result;
    ap_cfn_t *cfn = NULL;
    int *choice = NULL;
    double begin = xm_clock_seconds(), seconds;
    xm_status_t status =
        xm_text_parse_double("SECONDS", ap_command_argument(cli, 1), 0.01, 1e6, &seconds);

    if (status == XM_OK && o->work > 0.0 && o->threads != 1) {
        status = XM_INVALID("--work is of one thread: it needs --threads 1");
    }
    XM_THEN(status, ap_cfn_read(path, time_left(seconds, 0.0), &cfn));
    if (status == XM_OK) {
        options.seconds = time_left(seconds, xm_clock_seconds() - begin);
        if (!(options.seconds > 0.0)) {
            status = xm_error_set(XM_ERR_TIMEOUT, "no time is left of %g s: reading %s took %.2f s",
                                  seconds, path, xm_clock_seconds() - begin);
        }
    }
    if (status == XM_OK) {
        choice = calloc(cfn->nodes + 1, sizeof(*choice));
        options.threads = o->threads;
        options.work = o->threads != 1 ? 0.0 : o->work > 0.0 ? o->work : work_part * seconds;
        options.seed = (uint64_t)o->seed;
        options.certificate = o->certificate;
        options.progress = o->quiet ? NULL : show;
        status = choice == NULL ? XM_NO_MEMORY("%zu strategies", cfn->nodes)
                                : ap_cfn_solve(cfn, &options, choice, &result);
    }
    if (status == XM_OK) {
        if (xm_cli_wants_json(&o->json)) {
            status = give_json(&o->json, cfn, &result, choice);
        }
        if (!o->json.print) {
            if (o->certificate != NULL) {
                (void)printf("# %s proves the bound %.0f%s\n", o->certificate, result.certified,
                             result.certified_late ? " (ended by time)" : "");
            }
            print_result(cfn, &result, choice);
        }
        XM_THEN(status, xm_cli_flush());
    }
    free(choice);
    ap_cfn_destroy(cfn);
    return status;
}

int ap_command_solve(int argc, char *const *argv)
{
    solve_options_t o = {.seed = 1};
    const xm_cli_option_t table[] = {
        {"threads", 0, XM_CLI_INT, &o.threads, "COUNT", 1, 64, "Threads (default: one per core)."},
        {"seed", 0, XM_CLI_INT, &o.seed, "NUMBER", 0, 1 << 30, "Seed of the search (default 1)."},
        {"work", 0, XM_CLI_DOUBLE, &o.work, "SECONDS", 0.001, 1e6,
         "With --threads 1: end after so much work, in seconds of a usual core."},
        {"quiet", 0, XM_CLI_FLAG, &o.quiet, NULL, 0, 0, "No progress on standard error."},
        XM_CLI_JSON_OPTIONS(XM_CLI_OUTPUT, &o.json, "Print JSON instead of the contest's lines."),
        {"certificate", 0, XM_CLI_OUTPUT, &o.certificate, "FILE", 0, 0,
         "Write what proves the bound to FILE (up to as much time again)."},
    };
    const xm_cli_command_t command = XM_CLI_COMMAND(program, "PROBLEM SECONDS", summary,
                                                    "autopar solve problem.json 60", table, 2, 2);

    return xm_cli_main(&command, argc, argv, run, &o);
}
