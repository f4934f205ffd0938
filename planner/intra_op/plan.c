/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Solves a sharding problem: chooses networks and solvers, divides the time between them, and reads
 * the result back. Without a limit one network is solved, which is easy. Under a limit three views
 * of the problem help each other: without the limit (a bound, perhaps the answer), with symmetric
 * layers tied (a good plan and prices, soon), and as it is.
 *
 * Each phase gets a part of the time, because an anytime solver uses all that it is given. Results
 * of a phase are kept only for what they prove: a plan with tied layers is a plan, but its bound
 * holds among such plans only.
 */

#include "planner/intra_op/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/solver.h"
#include "planner/intra_op/network.h"
#include "planner/intra_op/price.h"

/* Smaller graphs are solved with every layer free. Under a limit, where the best plan treats layers
 * differently more often, larger ones are too. */
enum { LAYERS_MATTER = 256, LAYERS_MATTER_LIMITED = 1024 };
/* Time where none is given: to improve a plan, and to find one. */
enum { QUICK_SECONDS = 1, PATIENT_SECONDS = 60 };
/* The part of the time in which there shall be a first plan. */
static const double first_part = 0.1;
/* The part of the time in which a plan is sought without the limit. */
static const double unlimited_part = 0.3;
/* The part of the rest for symmetric layers tied, where they may differ. */
static const double alike_part = 0.35;
/* The part of the rest in which plans are made by prices on memory. */
static const double priced_part = 0.6;
/* Where there is less time, layers of one structure are alike, and without a first plan all of it
 * goes to one within the limit. */
static const double brief = 0.5;
/* The part of its time after which the solver is to return. */
static const double returning = 0.96;
/* A plan this near to its bound, relatively, counts as proved. */
static const double proved = 1e-6;

struct ap_shard_plan {
    const ap_shard_problem_t *problem;
    ap_shard_result_t result;
    int *strategy; /* per node */
    bool *again;   /* per operator */
    ap_shard_memory_t *memory;
};

const char *ap_shard_part_name(ap_shard_part_t part)
{
    static const char *const names[AP_SHARD_PARTS] = {
        "parameters", "optimizer state", "gradients", "inputs", "activations", "temporaries"};

    return names[part];
}

double ap_shard_memory_sum(const ap_shard_memory_t *memory)
{
    double sum = 0;

    for (int part = 0; part < AP_SHARD_PARTS; ++part) {
        sum += memory->part[part];
    }
    return sum;
}

/* Largest memory at any operator, and which. */
static double find_peak(const ap_shard_memory_t *memory, int ops, int *op)
{
    double peak = 0;

    for (int o = 0; o < ops; ++o) {
        double sum = ap_shard_memory_sum(&memory[o]);

        if (sum > peak) {
            peak = sum;
            *op = o;
        }
    }
    return peak;
}

/* The time until `end`, less what the solver may take to return. Where no time was given but it has
 * passed, as it has when the network alone takes longer, some is granted, so that there is a plan
 * at all. */
static double left(const ap_shard_options_t *options, double end)
{
    double granted = options->memory_limit > 0 ? 0.1 * QUICK_SECONDS : QUICK_SECONDS;

    return fmax(returning * (end - xm_clock_seconds()), options->seconds > 0 ? 0.001 : granted);
}

/* One run of the network's solver, for the caller's progress line in the units of the cost
 * model. */
typedef struct watch {
    const ap_shard_options_t *options;
    const ap_shard_network_t *network;
    double seconds;
} watch_t;

/* One line per second: cost, bound and gap as far as they are known. */
static void report_progress(void *context, const ap_cfn_progress_t *progress)
{
    const watch_t *watch = context;
    char what[96];

    if (progress->cost < HUGE_VAL) {
        (void)snprintf(what, sizeof(what), "cost %.6g, bound %.6g, gap %.2f %%",
                       progress->cost / watch->network->scale,
                       progress->bound / watch->network->scale,
                       100 * (progress->cost - progress->bound) / fmax(progress->cost, 1));
    } else {
        (void)snprintf(what, sizeof(what), "no plan yet, bound %.6g",
                       progress->bound / watch->network->scale);
    }
    watch->options->progress(watch->options->progress_arg,
                             fmin(progress->seconds / watch->seconds, 1), what);
}

/* Solves by the network's own solver. Under a limit, plans are first looked for by prices on
 * memory for a part of the time; their best plan starts the solver, their bound holds for it,
 * and the better plan of both is the answer. */
static xm_status_t solve_cfn(const ap_shard_network_t *network, const ap_shard_options_t *options,
                             double end, ap_shard_prices_t *prices, int *choice,
                             ap_cfn_result_t *result)
{
    const ap_cfn_t *cfn = network->cfn;
    ap_cfn_options_t cfn_options = AP_CFN_OPTIONS_INIT;
    ap_cfn_result_t priced = {.bound = 0};
    watch_t watch = {.options = options, .network = network};
    double bound = 0;
    int *other = malloc((cfn->nodes + 1) * sizeof(*other));
    xm_status_t status = other == NULL ? XM_NO_MEMORY("a plan") : XM_ERR_TIMEOUT;

    if (other == NULL) {
        return status;
    }
    if (cfn->limited) {
        status = ap_shard_price_solve(network, options, priced_part * left(options, end), prices,
                                      other, &priced, &bound);
    }
    cfn_options.seconds = watch.seconds = left(options, end);
    cfn_options.threads = options->threads;
    cfn_options.seed = options->seed;
    cfn_options.progress = options->progress != NULL ? report_progress : NULL;
    cfn_options.context = &watch;
    if (status == XM_OK) {
        cfn_options.start = other;
        /* The solver begins with the priced plan and so hardly ever ends with a worse one; where it
         * does, or fails, the priced one stays. */
        if (ap_cfn_solve(cfn, &cfn_options, choice, result) != XM_OK ||
            result->value.cost > priced.value.cost) {
            bound = fmax(bound, result->bound);
            memcpy(choice, other, cfn->nodes * sizeof(*choice));
            *result = priced;
        }
        result->bound = fmin(fmax(bound, result->bound), (double)result->value.cost);
    } else {
        status = ap_cfn_solve(cfn, &cfn_options, choice, result);
    }
    free(other);
    return status;
}

/* Lets the caller search. There is no bound. */
static xm_status_t solve_given(const ap_shard_network_t *network, const ap_shard_options_t *options,
                               double end, ap_shard_prices_t *prices, int *choice,
                               ap_cfn_result_t *result)
{
    const ap_cfn_t *cfn = network->cfn;
    uint8_t *part = calloc(cfn->node_at[cfn->nodes] + 1, AP_MAX_MESH_RANK);
    xm_status_t status = part == NULL ? XM_NO_MEMORY("a search") : XM_OK;

    (void)end;
    (void)prices;
    for (int c = 0; c < network->alike.classes && status == XM_OK; ++c) {
        const ap_shard_variable_t *variable = &network->variable[c];

        for (int o = 0; o < variable->options; ++o) {
            ap_shard_problem_parts(network->problem, variable->node, variable->option[o].strategy,
                                   &part[(cfn->node_at[c] + (size_t)o) * AP_MAX_MESH_RANK]);
        }
    }
    XM_THEN(status, options->search(options->search_arg, cfn, part, choice));
    free(part);
    *result = (ap_cfn_result_t){.repeatable = true};
    return status == XM_OK ? ap_cfn_evaluate(cfn, choice, &result->value) : status;
}

static xm_status_t solve_least(const ap_shard_network_t *network, const ap_shard_options_t *options,
                               double end, ap_shard_prices_t *prices, int *choice,
                               ap_cfn_result_t *result)
{
    (void)prices;
    return ap_shard_price_least(network, options, end, choice, result);
}

/* Takes over what was chosen: the strategy of every node, what runs again, memory over time, and
 * the objective in the cost model's units. Peak and objective are computed from the problem itself,
 * so a fault of the network would show. */
static xm_status_t read_choice(ap_shard_plan_t *plan, const ap_shard_network_t *network,
                               const int *choice, const ap_cfn_result_t *found)
{
    const ap_shard_problem_t *p = plan->problem;
    int ops = ap_graph_ops(p->params.graph);
    ap_shard_result_t *result = &plan->result;

    plan->strategy = malloc(((size_t)p->nodes + 1) * sizeof(*plan->strategy));
    plan->again = calloc((size_t)ops + 1, sizeof(*plan->again));
    plan->memory = calloc((size_t)ops + 1, sizeof(*plan->memory));
    if (plan->strategy == NULL || plan->again == NULL || plan->memory == NULL) {
        return XM_NO_MEMORY("the strategies of %d nodes", p->nodes);
    }
    for (int n = 0; n < p->nodes; ++n) {
        int class = network->alike.class_of[n];
        const ap_shard_option_t *option = &network->variable[class].option[choice[class]];

        plan->strategy[n] = option->strategy;
        if (p->node[n].op >= 0 && option->keep == AP_SHARD_REMATERIALISED) {
            plan->again[p->node[n].op] = true;
            ++result->recomputed;
        }
    }
    ap_shard_network_memory(network, choice, plan->memory);
    result->peak = find_peak(plan->memory, ops, &result->peak_op);
    result->objective = ap_shard_network_cost(network, choice);
    /* The network's costs were rounded down, so its bound divided by the scale is one for the true
     * costs. */
    result->bound = fmin(found->bound / network->scale, result->objective);
    result->optimal =
        found->optimal || result->objective - result->bound <= proved * fabs(result->objective);
    result->repeatable = found->repeatable;
    result->variables = network->alike.classes;
    result->alike = network->alike.repeats;
    return XM_OK;
}

/* A way to solve a network until `end`. */
typedef xm_status_t solve_fn(const ap_shard_network_t *network, const ap_shard_options_t *options,
                             double end, ap_shard_prices_t *prices, int *choice,
                             ap_cfn_result_t *result);

/* Solves one network into a plan. The network lives only here: the plan keeps strategies, not
 * options. */
static xm_status_t solve_once(const ap_shard_problem_t *problem, const ap_shard_options_t *options,
                              solve_fn *solve, bool limited, double end, ap_shard_prices_t *prices,
                              ap_shard_plan_t **plan)
{
    ap_shard_network_t *network;
    ap_shard_plan_t *made;
    ap_cfn_result_t found = {.bound = 0};
    int *choice;
    xm_status_t status = ap_shard_network_create(problem, options, limited, &network);

    if (status == XM_OK && limited) {
        status = ap_shard_network_check_least(network, options->memory_limit);
        if (status != XM_OK) {
            ap_shard_network_destroy(network);
        }
    }
    XM_TRY(status);
    made = calloc(1, sizeof(*made));
    choice = calloc(network->cfn->nodes + 1, sizeof(*choice));
    if (made == NULL || choice == NULL) {
        status = XM_NO_MEMORY("the strategies of %d nodes", problem->nodes);
        goto release;
    }
    made->problem = problem;
    status = ap_shard_network_explain(network, limited ? options->memory_limit : 0,
                                      solve(network, options, end, prices, choice, &found));
    XM_THEN(status, read_choice(made, network, choice, &found));
    if (status == XM_OK) {
        *plan = made;
        made = NULL;
    }

release:
    ap_shard_plan_destroy(made);
    free(choice);
    ap_shard_network_destroy(network);
    return status;
}

/* Leaves the cheaper of two plans, either of which may be NULL, in *plan, and destroys the
 * other. */
static void take_cheaper(ap_shard_plan_t **plan, ap_shard_plan_t **other)
{
    if (*plan == NULL ||
        (*other != NULL && (*other)->result.objective <= (*plan)->result.objective)) {
        ap_shard_plan_t *less = *plan;

        *plan = *other;
        *other = less;
    }
    ap_shard_plan_destroy(*other);
    *other = NULL;
}

/* Finds a plan with symmetric layers tied, for a problem where they may differ. *plan may stay
 * NULL: not finding one is no failure here. */
static xm_status_t solve_alike(const ap_shard_problem_t *problem, const ap_shard_options_t *options,
                               solve_fn *solve, double end, ap_shard_prices_t *prices,
                               ap_shard_plan_t **plan)
{
    ap_shard_options_t tied = *options;
    xm_status_t status;

    tied.every_layer = false;
    status = solve_once(problem, &tied, solve, true, end, prices, plan);
    if (status == XM_ERR_TIMEOUT || status == XM_ERR_NO_SOLUTION) {
        return XM_OK;
    }
    if (status == XM_OK) { /* what is proved of it is so among such plans only */
        ap_shard_result_t *result = &(*plan)->result;

        result->bound = 0;
        result->optimal = result->repeatable = false;
        if (options->every_layer) {
            result->variables += result->alike;
            result->alike = 0;
        }
    }
    return status;
}

/* What every plan holds at least, whatever the limit: parameters, inputs and the largest tensor,
 * cut over all devices. What is large is told by it in the first candidate, which must not depend
 * on the limit. */
static double held_bytes(const ap_shard_problem_t *problem)
{
    const ap_graph_t *graph = problem->params.graph;
    double kept = 0, largest = 0;

    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        double bytes = ap_graph_tensor_bytes(graph, t);

        kept += ap_graph_tensor(graph, t)->producer < 0 ? bytes : 0;
        largest = fmax(largest, bytes);
    }
    return (kept + largest) / ap_cost_mesh_devices(problem->params.mesh, ~0U);
}

/* The first candidate: the plan of the least memory, found before anything else is tried. */
static xm_status_t solve_first(const ap_shard_problem_t *problem, const ap_shard_options_t *options,
                               double end, ap_shard_plan_t **plan)
{
    ap_shard_options_t first = *options;
    ap_shard_prices_t prices = {.moments = 0};

    first.yardstick = held_bytes(problem);
    return solve_alike(problem, &first, solve_least, end, &prices, plan);
}

/* Solves without the limit: *plan is what fits, or stays NULL. The bound holds in any case. */
static xm_status_t solve_unlimited(const ap_shard_problem_t *problem,
                                   const ap_shard_options_t *options, double end, double *bound,
                                   ap_shard_plan_t **plan)
{
    ap_shard_prices_t prices = {.moments = 0};
    xm_status_t status = solve_once(problem, options, solve_cfn, false, end, &prices, plan);

    if (status == XM_OK) {
        *bound = (*plan)->result.bound;
        if ((*plan)->result.peak > options->memory_limit) {
            ap_shard_plan_destroy(*plan);
            *plan = NULL;
        }
    }
    return status == XM_ERR_TIMEOUT ? XM_OK : status;
}

/* Solves first without the limit, which is easy: what is found may fit, and its bound holds anyway.
 * Then with the limit, in the time that is left. A large graph whose layers are free is solved with
 * symmetric layers tied in between: that plan is a plan for free layers too, and the prices on
 * memory are nearly right for them. *best has the cheapest plan so far, if any. */
static xm_status_t improve(const ap_shard_problem_t *problem, const ap_shard_options_t *options,
                           double begin, double end, ap_shard_plan_t **best)
{
    ap_shard_prices_t prices = {.moments = 0};
    ap_shard_plan_t *other = NULL;
    double bound = 0;
    xm_status_t status = XM_OK;

    if (*best != NULL || end - begin >= brief) {
        status = solve_unlimited(problem, options, begin + unlimited_part * (end - begin), &bound,
                                 &other);
        take_cheaper(best, &other);
    }
    if (status == XM_OK && (*best == NULL || !(*best)->result.optimal) && options->every_layer &&
        end - begin >= brief && ap_graph_ops(problem->params.graph) >= LAYERS_MATTER_LIMITED) {
        status = solve_alike(problem, options, solve_cfn,
                             xm_clock_seconds() + alike_part * (end - xm_clock_seconds()), &prices,
                             &other);
        take_cheaper(best, &other);
    }
    if (status != XM_OK ||
        (*best != NULL && ((*best)->result.optimal || xm_clock_seconds() >= end))) {
        return status;
    }
    /* The last run takes all the time that is left; the cheapest plan of all runs is the answer,
     * with the best bound that holds for the problem itself. */
    status = solve_once(problem, options, solve_cfn, true, end, &prices, &other);
    if (status == XM_OK) {
        bound = fmax(bound, other->result.bound);
        take_cheaper(best, &other);
    }
    if (*best != NULL && (status == XM_ERR_TIMEOUT || status == XM_ERR_NO_SOLUTION)) {
        status = XM_OK;
    }
    if (status == XM_OK) {
        ap_shard_result_t *result = &(*best)->result;

        result->bound = fmin(fmax(bound, result->bound), result->objective);
        result->optimal = result->optimal ||
                          result->objective - result->bound <= proved * fabs(result->objective);
    }
    return status;
}

/* There is a plan from the first moment on, wherever prices on memory find one; all the rest
 * improves it. */
static xm_status_t solve_limited(const ap_shard_problem_t *problem,
                                 const ap_shard_options_t *options, double begin, double end,
                                 ap_shard_plan_t **plan)
{
    ap_shard_plan_t *best = NULL;
    xm_status_t status = solve_first(problem, options, begin + first_part * (end - begin), &best);

    XM_THEN(status, improve(problem, options, begin, end, &best));
    if (status == XM_OK) {
        *plan = best;
    } else {
        ap_shard_plan_destroy(best);
    }
    return status;
}

/* Whether layers may differ is decided by the size of the graph and the time unless the caller says
 * so. */
static bool layers_differ(const ap_shard_problem_t *problem, const ap_shard_options_t *options,
                          bool limited, double seconds)
{
    return options->every_layer ||
           (seconds >= brief && ap_graph_ops(problem->params.graph) <
                                    (limited ? LAYERS_MATTER_LIMITED : LAYERS_MATTER));
}

/* Where nobody has set a time, or no limit is in the way of a plan, the search takes as long as it
 * needs to find one. */
static xm_status_t solve_within(const ap_shard_problem_t *problem,
                                const ap_shard_options_t *options, ap_shard_plan_t **plan)
{
    ap_shard_options_t used = *options;
    bool limited = options->memory_limit > 0;
    bool patient = !(limited && options->seconds > 0);
    double begin = xm_clock_seconds(),
           seconds = options->seconds > 0 ? options->seconds : QUICK_SECONDS;
    ap_shard_prices_t prices = {.moments = 0};
    xm_status_t status;

    used.every_layer = layers_differ(problem, options, limited, seconds);
    do {
        double now = xm_clock_seconds(), end = now + seconds;

        status = options->search != NULL
                     ? solve_once(problem, &used, solve_given, false, end, &prices, plan)
                 : limited ? solve_limited(problem, &used, now, end, plan)
                           : solve_once(problem, &used, solve_cfn, limited, end, &prices, plan);
        seconds *= 2;
    } while (status == XM_ERR_TIMEOUT && patient && seconds < PATIENT_SECONDS);
    if (status == XM_OK) {
        (*plan)->result.seconds = xm_clock_seconds() - begin;
    }
    return status;
}

/* Without a limit the devices have one, which is looked at only where the plan exceeds it. */
xm_status_t ap_shard_solve(const ap_shard_problem_t *problem, const ap_shard_options_t *options,
                           ap_shard_plan_t **plan)
{
    ap_shard_options_t within = *options;
    double has = ap_cost_mesh_memory(problem->params.mesh), usable;
    ap_shard_plan_t *roomy;
    xm_status_t status = XM_OK;

    if (!isfinite(options->seconds) || options->seconds < 0) {
        return XM_INVALID("a time limit of %g s: 0 or more", options->seconds);
    }
    if (options->memory_limit > 0 || (options->memory.limit == 0 && !(has > 0))) {
        return solve_within(problem, options, plan);
    }
    XM_TRY(ap_memory_budget_check(&options->memory, has));
    usable = ap_memory_budget_usable(&options->memory, has);
    if (!(options->memory.limit > 0)) {
        status = solve_within(problem, options, &roomy);
        if (status != XM_OK || roomy->result.peak <= usable) {
            *plan = status == XM_OK ? roomy : *plan;
            return status;
        }
        ap_shard_plan_destroy(roomy);
    }
    within.memory_limit = usable;
    return solve_within(problem, &within, plan);
}

xm_status_t ap_shard_problem_network(const ap_shard_problem_t *problem,
                                     const ap_shard_options_t *options, ap_cfn_t **cfn)
{
    ap_shard_options_t used = *options;
    double has = ap_cost_mesh_memory(problem->params.mesh);
    ap_shard_network_t *network;
    xm_status_t status;

    XM_TRY(ap_memory_budget_check(&used.memory, has));
    used.memory_limit =
        used.memory.limit > 0 || has > 0 ? ap_memory_budget_usable(&used.memory, has) : 0;
    used.every_layer = layers_differ(problem, &used, used.memory_limit > 0,
                                     used.seconds > 0 ? used.seconds : QUICK_SECONDS);
    status = ap_shard_network_create(problem, &used, used.memory_limit > 0, &network);
    if (status == XM_OK) {
        *cfn = network->cfn;
        network->cfn = NULL;
        ap_shard_network_destroy(network);
    }
    return status;
}

const ap_shard_result_t *ap_shard_plan_result(const ap_shard_plan_t *plan)
{
    return &plan->result;
}

const int *ap_shard_plan_strategies(const ap_shard_plan_t *plan)
{
    return plan->strategy;
}

bool ap_shard_plan_recomputes(const ap_shard_plan_t *plan, int op)
{
    return plan->again[op];
}

const ap_shard_memory_t *ap_shard_plan_memory(const ap_shard_plan_t *plan, int op)
{
    return &plan->memory[op];
}

void ap_shard_plan_destroy(ap_shard_plan_t *plan)
{
    if (plan == NULL) {
        return;
    }
    free(plan->strategy);
    free(plan->again);
    free(plan->memory);
    free(plan);
}
