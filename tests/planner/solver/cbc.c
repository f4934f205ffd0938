/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Solves a cost function network with the integer program solver CBC, as an independent check of
 * our own solver. The program is the usual linearisation over the local polytope: a 0-1 variable
 * for each strategy, and for each allowed cell of an edge a continuous variable z whose sums over
 * rows and columns equal the strategies' variables. Once the x are 0 or 1, those sums leave exactly
 * one z at 1, so the z need no integrality. The usage limit is enforced lazily, because a row for
 * each time would make the program far larger than the few rows that bind. CBC is
 * called as a program with files, so it is no dependency of the library.
 */

#include "tests/planner/solver/cbc.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/base.h"

/* The most times that may get a row for the limit. */
enum { TIMES = 256 };

/* Files of one run, in a directory of their own. */
typedef struct files {
    char directory[PATH_MAX / 2];
    char problem[PATH_MAX], solution[PATH_MAX], log[PATH_MAX];
} files_t;

typedef struct program {
    const ap_cfn_t *cfn;
    files_t files;
    double unit;   /* costs are divided by it */
    double amount; /* usages too */
    int64_t *time; /* with a row for the limit */
    double *rows;  /* right-hand side of each */
    int times;
    double deadline; /* monotonic seconds */
    double bound;
    bool optimal;
} program_t;

/* Forbidden strategies get no variable at all; a large cost in their place would ruin the
 * numerics. */
static bool is_allowed(const ap_cfn_t *cfn, size_t node, size_t strategy)
{
    return cfn->costs[cfn->node_at[node] + strategy] < AP_CFN_INFINITE;
}

/* A cell of an edge of two nodes that both ends and the table allow. */
static bool is_open(const ap_cfn_t *cfn, size_t edge, size_t s, size_t t)
{
    const int *scope = cfn->scope + cfn->scope_at[edge];
    size_t width = ap_cfn_strategies(cfn, (size_t)scope[1]);

    return is_allowed(cfn, (size_t)scope[0], s) && is_allowed(cfn, (size_t)scope[1], t) &&
           cfn->cells[cfn->cell_at[edge] + s * width + t] < AP_CFN_INFINITE;
}

static size_t arity(const ap_cfn_t *cfn, size_t edge)
{
    return cfn->scope_at[edge + 1] - cfn->scope_at[edge];
}

/* The objective, in units that keep its coefficients small. The variable `nothing`, which a row
 * fixes at 0, keeps the expression from being empty when there are no costs. Edges of one node
 * have no cells; their costs are further terms of the strategies' own variables. */
static void write_objective(FILE *lp, const program_t *p)
{
    const ap_cfn_t *cfn = p->cfn;

    (void)fprintf(lp, "Minimize\n obj: 0 nothing\n");
    for (size_t n = 0; n < cfn->nodes; ++n) {
        for (size_t s = 0; s < ap_cfn_strategies(cfn, n); ++s) {
            if (is_allowed(cfn, n, s)) {
                (void)fprintf(lp, " + %.15g x%zu_%zu\n",
                              (double)cfn->costs[cfn->node_at[n] + s] / p->unit, n, s);
            }
        }
    }
    for (size_t e = 0; e < cfn->edges; ++e) {
        const int *scope = cfn->scope + cfn->scope_at[e];
        size_t rows = ap_cfn_strategies(cfn, (size_t)scope[0]);
        size_t width = arity(cfn, e) == 2 ? ap_cfn_strategies(cfn, (size_t)scope[1]) : 1;

        for (size_t c = 0; c < rows * width; ++c) {
            /* Cells of open pairs cost their z; those of edges of one node cost the strategy's
             * x. */
            double cost = (double)cfn->cells[cfn->cell_at[e] + c] / p->unit;

            if (arity(cfn, e) == 2 && is_open(cfn, e, c / width, c % width)) {
                (void)fprintf(lp, " + %.15g z%zu_%zu\n", cost, e, c);
            } else if (arity(cfn, e) == 1 && is_allowed(cfn, (size_t)scope[0], c) &&
                       cfn->cells[cfn->cell_at[e] + c] < AP_CFN_INFINITE) {
                (void)fprintf(lp, " + %.15g x%d_%zu\n", cost, scope[0], c);
            }
        }
    }
}

/* The open cells of an edge that have strategy s at one end sum up to the variable of s. */
static void write_marginal(FILE *lp, const ap_cfn_t *cfn, size_t e, int end, size_t s)
{
    const int *scope = cfn->scope + cfn->scope_at[e];
    size_t width = ap_cfn_strategies(cfn, (size_t)scope[1]);
    size_t others = ap_cfn_strategies(cfn, (size_t)scope[1 - end]);

    if (!is_allowed(cfn, (size_t)scope[end], s)) {
        return;
    }
    for (size_t t = 0; t < others; ++t) {
        size_t a = end == 0 ? s : t, b = end == 0 ? t : s;

        if (is_open(cfn, e, a, b)) {
            (void)fprintf(lp, " + z%zu_%zu", e, a * width + b);
        }
    }
    (void)fprintf(lp, " - x%d_%zu = 0\n", scope[end], s);
}

/* The rows without the limit: each node takes one strategy, and the cells of an edge agree with
 * both of its ends. An edge of one node needs rows only for the strategies that it forbids. */
static void write_rows(FILE *lp, const program_t *p)
{
    const ap_cfn_t *cfn = p->cfn;

    (void)fprintf(lp, "Subject To\n nothing = 0\n");
    for (size_t n = 0; n < cfn->nodes; ++n) {
        for (size_t s = 0; s < ap_cfn_strategies(cfn, n); ++s) {
            if (is_allowed(cfn, n, s)) {
                (void)fprintf(lp, " + x%zu_%zu", n, s);
            }
        }
        (void)fprintf(lp, " = 1\n");
    }
    for (size_t e = 0; e < cfn->edges; ++e) {
        for (int end = 0; end < 2; ++end) {
            int node = cfn->scope[cfn->scope_at[e] + (arity(cfn, e) == 2 ? (size_t)end : 0)];

            for (size_t s = 0; s < ap_cfn_strategies(cfn, (size_t)node); ++s) {
                if (arity(cfn, e) == 2) {
                    write_marginal(lp, cfn, e, end, s);
                } else if (end == 0 && is_allowed(cfn, (size_t)node, s) &&
                           cfn->cells[cfn->cell_at[e] + s] >= AP_CFN_INFINITE) {
                    (void)fprintf(lp, " x%d_%zu = 0\n", node, s);
                }
            }
        }
    }
}

/* A row for each time that some earlier solution exceeded; all nodes live at that time are in
 * it. */
static void write_limits(FILE *lp, const program_t *p)
{
    const ap_cfn_t *cfn = p->cfn;

    for (int k = 0; k < p->times; ++k) {
        (void)fprintf(lp, " 0 nothing");
        for (size_t n = 0; n < cfn->nodes; ++n) {
            if (p->time[k] < cfn->interval[2 * n] || p->time[k] >= cfn->interval[2 * n + 1]) {
                continue;
            }
            for (size_t s = 0; s < ap_cfn_strategies(cfn, n); ++s) {
                /* Terms of 0 are left out, as they would only make the file longer. */
                int64_t usage = cfn->usages[cfn->node_at[n] + s];

                if (usage > 0 && is_allowed(cfn, n, s)) {
                    (void)fprintf(lp, " + %.15g x%zu_%zu\n", (double)usage / p->amount, n, s);
                }
            }
        }
        (void)fprintf(lp, " <= %.15g\n", p->rows[k]);
    }
}

/* Writes the whole program anew in LP format. Rows are few and writing is quick beside a run of
 * CBC, so nothing is patched. Errors of single writes show up when the file is closed. */
static xm_status_t write_program(const program_t *p)
{
    const ap_cfn_t *cfn = p->cfn;
    FILE *lp = fopen(p->files.problem, "w");

    if (lp == NULL) {
        return xm_error_set(XM_ERR_IO, "cannot write %s", p->files.problem);
    }
    write_objective(lp, p);
    write_rows(lp, p);
    write_limits(lp, p);
    (void)fprintf(lp, "Binary\n");
    for (size_t n = 0; n < cfn->nodes; ++n) {
        for (size_t s = 0; s < ap_cfn_strategies(cfn, n); ++s) {
            if (is_allowed(cfn, n, s)) {
                (void)fprintf(lp, " x%zu_%zu\n", n, s);
            }
        }
    }
    (void)fprintf(lp, "End\n");
    if (fclose(lp) != 0) {
        return xm_error_set(XM_ERR_IO, "cannot write %s", p->files.problem);
    }
    return XM_OK;
}

/* Runs a program with its output in a file. Returns its exit status, or -1 when it did not run. The
 * call is posix_spawn() and not fork(), because the caller may have threads and a large address
 * space. Standard input is empty, so CBC cannot wait for a user. */
static int run_program(char *const *argv, const char *output)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int result, wait_status = 0;

    if (posix_spawn_file_actions_init(&actions) != 0) {
        return -1;
    }
    (void)posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output,
                                           O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    (void)posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    result = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    if (result != 0 || waitpid(pid, &wait_status, 0) != pid || !WIFEXITED(wait_status)) {
        return -1;
    }
    return WEXITSTATUS(wait_status);
}

/* CBC may use what is left of the time. Its gaps are set to 0, so that "optimal" means optimal. */
static xm_status_t run_cbc(program_t *p)
{
    char seconds[32], cbc[] = "cbc", sec[] = "sec", ratio[] = "ratio", allow[] = "allow",
                      zero[] = "0", solve[] = "solve", solution[] = "solution";
    char *const argv[] = {
        cbc,      p->files.problem,  sec, seconds, ratio, zero, allow, zero, solve,
        solution, p->files.solution, NULL};

    (void)snprintf(seconds, sizeof(seconds), "%.2f", fmax(0.05, p->deadline - xm_clock_seconds()));
    (void)unlink(p->files.solution);
    if (run_program(argv, p->files.log) != 0) {
        return XM_UNSUPPORTED("the program cbc (Debian package coinor-cbc) is not there or failed");
    }
    return XM_OK;
}

/* The bound that CBC printed when it ran out of time, back in the problem's units; 0, which is
 * always valid, when it printed none. Of several the last counts. It is valid for the whole
 * problem although rows for the limit are missing, because a missing row only makes the minimum
 * smaller. */
static double read_bound(const program_t *p)
{
    FILE *log = fopen(p->files.log, "r");
    char line[512];
    double bound = 0;

    while (log != NULL && fgets(line, sizeof(line), log) != NULL) {
        if (strncmp(line, "Lower bound:", 12) == 0) {
            bound = strtod(line + 12, NULL) * p->unit;
        }
    }
    if (log != NULL) {
        (void)fclose(log);
    }
    return bound;
}

/* Reads CBC's solution. Its first line says what it is, and each other line has "number name
 * value …". Cells (z) are skipped: the strategies alone make the choice. Values of 0-1 variables
 * may come with rounding errors, so a strategy counts as chosen above one half. */
static xm_status_t read_solution(program_t *p, int *choice)
{
    FILE *file = fopen(p->files.solution, "r");
    char line[512];
    xm_status_t status = XM_OK;

    if (file == NULL || fgets(line, sizeof(line), file) == NULL) {
        status = xm_error_set(XM_ERR_TIMEOUT, "cbc found no choice in time");
        goto release;
    }
    /* The first line tells how the search ended. One that was stopped may say "infeasible" only
     * because it had no time, so that is told apart. */
    p->optimal = strncmp(line, "Optimal", 7) == 0;
    if (strstr(line, "nfeasible") != NULL && strstr(line, "Stopped") == NULL) {
        status = XM_NO_SOLUTION("cbc says that no choice fits");
        goto release;
    }
    /* Only variables that are not 0 are listed. */
    memset(choice, -1, p->cfn->nodes * sizeof(*choice));
    while (fgets(line, sizeof(line), file) != NULL) {
        /* A name is x<node>_<strategy>; whatever does not read as one is passed over. */
        char *name = strchr(line, 'x'), *end;
        size_t node;
        long strategy;

        if (name == NULL) {
            continue;
        }
        node = strtoul(name + 1, &end, 10);
        strategy = *end == '_' ? strtol(end + 1, &end, 10) : -1;
        if (node < p->cfn->nodes && strategy >= 0 && strtod(end, NULL) > 0.5) {
            choice[node] = (int)strategy;
        }
    }
    for (size_t n = 0; n < p->cfn->nodes; ++n) {
        if (choice[n] < 0) {
            status = xm_error_set(XM_ERR_TIMEOUT, "cbc found no choice in time");
            break;
        }
    }

release:
    if (file != NULL) {
        (void)fclose(file);
    }
    return status;
}

/* The usage at one time, in integers. This is linear in the nodes, which is fast enough beside a
 * run of CBC. */
static int64_t usage_at(const ap_cfn_t *cfn, const int *choice, int64_t time)
{
    int64_t sum = 0;

    for (size_t n = 0; n < cfn->nodes; ++n) {
        if (cfn->interval[2 * n] <= time && time < cfn->interval[2 * n + 1]) {
            sum += cfn->usages[cfn->node_at[n] + (size_t)choice[n]];
        }
    }
    return sum;
}

/* Adds a row for a time. When there is a row already, CBC's solution was within its tolerance and
 * still exceeds the limit, so the row is tightened by a millionth. A choice that uses all but a
 * millionth of the limit may be lost by that; this is the price of checking with floating-point
 * rows. */
static xm_status_t add_row(program_t *p, int64_t time)
{
    for (int k = 0; k < p->times; ++k) {
        if (p->time[k] == time) {
            p->rows[k] -= 1e-6 * fmax(1, p->rows[k]);
            return XM_OK;
        }
    }
    if (p->times == TIMES) {
        return xm_error_set(XM_ERR_TIMEOUT, "%d times did not make cbc meet the limit", TIMES);
    }
    p->time[p->times] = time;
    p->rows[p->times++] = (double)p->cfn->limit / p->amount;
    return XM_OK;
}

static int compare_times(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;

    return (a > b) - (a < b);
}

/* Adds a row for the peak of every stretch of time that exceeds the limit. Usage grows only where
 * an interval begins, so the starts are all that must be looked at. One row per stretch keeps the
 * program small, and the next solution shows whether it was enough. */
static xm_status_t add_rows(program_t *p, const int *choice)
{
    const ap_cfn_t *cfn = p->cfn;
    int64_t *starts = malloc((cfn->nodes + 1) * sizeof(*starts)), most = 0, when = 0;
    xm_status_t status = XM_OK;

    if (starts == NULL) {
        return XM_NO_MEMORY("%zu times", cfn->nodes);
    }
    for (size_t n = 0; n < cfn->nodes; ++n) {
        starts[n] = cfn->interval[2 * n];
    }
    qsort(starts, cfn->nodes, sizeof(*starts), compare_times);
    for (size_t n = 0; n <= cfn->nodes && status == XM_OK; ++n) {
        /* The round after the last start has usage 0: it ends a stretch that is still open. */
        int64_t usage = n < cfn->nodes ? usage_at(cfn, choice, starts[n]) : 0;

        if (usage > cfn->limit && usage > most) {
            most = usage;
            when = starts[n];
        } else if (usage <= cfn->limit && most > 0) {
            status = add_row(p, when);
            most = 0;
        }
    }
    free(starts);
    return status;
}

/* Solves without the limit, then adds rows for what the solution exceeds, until a solution fits.
 * Each program is a relaxation of the problem, so a solution that fits and is optimal for its
 * program is optimal for the problem. The loop ends: each round adds or tightens a row, and the
 * deadline ends it otherwise. */
static xm_status_t solve(program_t *p, int *choice, ap_cfn_result_t *result)
{
    for (;;) {
        xm_status_t status = write_program(p);

        if (status == XM_OK) {
            status = run_cbc(p);
        }
        if (status == XM_OK) {
            status = read_solution(p, choice);
        }
        if (status == XM_OK) {
            status = ap_cfn_evaluate(p->cfn, choice, &result->value);
        }
        if (status != XM_OK) {
            return status;
        }
        /* The bound of this round replaces that of the last: more rows only make it larger. */
        p->bound = p->optimal ? (double)result->value.cost : read_bound(p);
        if (result->value.feasible) {
            return XM_OK;
        }
        if (xm_clock_seconds() >= p->deadline) {
            return xm_error_set(XM_ERR_TIMEOUT, "cbc found no choice within the limit in time");
        }
        status = add_rows(p, choice);
        if (status != XM_OK) {
            return status;
        }
    }
}

/* Each run has a directory of its own, so that runs at the same time do not share files. */
static xm_status_t make_files(files_t *files)
{
    const char *directory = getenv("TMPDIR");

    (void)snprintf(files->directory, sizeof(files->directory), "%s/autopar-cbc-XXXXXX",
                   directory != NULL && directory[0] != '\0' ? directory : "/tmp");
    if (mkdtemp(files->directory) == NULL) {
        return xm_error_set(XM_ERR_IO, "cannot make a directory like %s", files->directory);
    }
    (void)snprintf(files->problem, sizeof(files->problem), "%s/problem.lp", files->directory);
    (void)snprintf(files->solution, sizeof(files->solution), "%s/solution", files->directory);
    (void)snprintf(files->log, sizeof(files->log), "%s/log", files->directory);
    return XM_OK;
}

static void remove_files(const files_t *files)
{
    (void)unlink(files->problem);
    (void)unlink(files->solution);
    (void)unlink(files->log);
    (void)rmdir(files->directory);
}

/* Refuses what the program cannot express: edges of three nodes, and nodes without an allowed
 * strategy, whose sum would be empty. */
static xm_status_t check(const ap_cfn_t *cfn)
{
    for (size_t e = 0; e < cfn->edges; ++e) {
        if (arity(cfn, e) > 2) {
            return XM_UNSUPPORTED("edge %zu joins %zu nodes; cbc gets edges of two only", e,
                                  arity(cfn, e));
        }
    }
    for (size_t n = 0; n < cfn->nodes; ++n) {
        bool any = false;

        for (size_t s = 0; s < ap_cfn_strategies(cfn, n); ++s) {
            any = any || is_allowed(cfn, n, s);
        }
        if (!any) {
            return XM_NO_SOLUTION("every strategy of node %zu is forbidden", n);
        }
    }
    return XM_OK;
}

/* Checks, scales, solves, and removes the files on every way out. The evaluation of the choice
 * is in the problem's own integers, whatever CBC's numbers were. */
xm_status_t ap_cfn_cbc_solve(const ap_cfn_t *cfn, double seconds, int *choice,
                             ap_cfn_result_t *result)
{
    program_t p = {.cfn = cfn, .unit = 1, .amount = 1};
    double begin = xm_clock_seconds(), largest = 1;
    xm_status_t status = check(cfn);

    if (status != XM_OK) {
        return status;
    }
    /* The largest cost that is not forbidden gives the unit. */
    for (size_t k = 0; k < cfn->node_at[cfn->nodes]; ++k) {
        largest = cfn->costs[k] < AP_CFN_INFINITE ? fmax(largest, (double)cfn->costs[k]) : largest;
    }
    for (size_t k = 0; k < cfn->cell_at[cfn->edges]; ++k) {
        largest = cfn->cells[k] < AP_CFN_INFINITE ? fmax(largest, (double)cfn->cells[k]) : largest;
    }
    /* CBC's tolerances are absolute, so costs and usages are scaled to at most 1e5; what a
     * tolerance leaves open is then a small part of the largest cost. */
    p.unit = fmax(1, largest / 1e5);
    p.amount = fmax(1, (double)cfn->limit / 1e5);
    p.deadline = begin + (seconds > 0 ? seconds : 60);
    p.time = calloc(TIMES, sizeof(*p.time));
    p.rows = calloc(TIMES, sizeof(*p.rows));
    *result = (ap_cfn_result_t){.variables = (int)cfn->nodes, .links = (int)cfn->edges};
    status = p.time == NULL || p.rows == NULL ? XM_NO_MEMORY("%zu nodes", cfn->nodes)
                                              : make_files(&p.files);
    if (status == XM_OK) {
        status = solve(&p, choice, result);
        remove_files(&p.files);
    }
    if (status == XM_OK) {
        result->optimal = p.optimal;
        result->bound = p.bound;
        result->times = p.times;
        result->seconds = xm_clock_seconds() - begin;
    }
    free(p.time);
    free(p.rows);
    return status;
}
