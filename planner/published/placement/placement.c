/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device placement for pipelines (Tarnawski et al., NeurIPS'20): the contiguous optimum by dynamic
 * programming over down-sets, as theirs. The number of pairs of down-sets is what it costs, so most
 * of the file avoids them: a first answer along one order of the operators gives a limit; a part
 * that alone exceeds it is cut off with everything above it; and the load of a part is updated when
 * a group joins, not computed.
 *
 * Where even that is too much, the answer along one order is returned as such.
 */

#include "planner/published/placement/placement.h"

#include <math.h>

#include "planner/published/placement/groups.h"

/* More down-sets or parts than these are cut along one order instead; half a minute or so. */
enum { MOST_IDEALS = 1000000, MOST_PAIRS = 300000000, MOST_SLOTS = 1 << 14, MOST_CELLS = 1 << 28 };

/* Sums over a contiguous part: times, memory, and transfers over its border. */
typedef struct sums {
    double accelerator, cpu, size, transfer;
} sums_t;

/* A contiguous part between two down-sets while it grows. */
typedef struct part {
    const ap_placement_groups_t *groups;
    sums_t sums;
    bool *in;    /* [source]: whether its group is in the part */
    int *takers; /* [source]: how many of its takers are */
} part_t;

/* The part that explains a load, looked for again. Keeping it for every cell would take more memory
 * than the table. */
typedef struct explanation {
    double load;
    int slot, below;
    bool on_cpu;
} explanation_t;

typedef struct search {
    const ap_placement_problem_t *problem;
    const ap_placement_groups_t *groups;
    const ap_ideals_t *ideals;
    double limit; /* parts that load every device by more cannot be in the answer */
    part_t part;
    double *best; /* [ideal][slot]: smallest load with so many CPUs and accelerators at most */
    int slots; /* CPUs + 1 times accelerators + 1; slot = cpus * (accelerators + 1) + accelerators
                */
    sums_t *before; /* [depth]: what is put back when a group leaves: nothing is lost to rounding */
    int64_t pairs;
    explanation_t wanted;
    xm_arena_t arena;
} search_t;

static xm_status_t no_memory(int count)
{
    return XM_NO_MEMORY("placing %d groups of operators", count);
}

/* Whether a source's output crosses the border of the part. */
static bool crosses(const part_t *part, int source)
{
    return part->in[source] ? part->takers[source] < part->groups->sources[source].count
                            : part->takers[source] > 0;
}

/* Adds (step 1) a group to the part or takes it away (-1). Only sources of the group, and those
 * that it takes from, can change whether they cross. */
static void change(part_t *part, int group, int step)
{
    const ap_placement_groups_t *groups = part->groups;

    for (int i = groups->first_own[group]; i < groups->first_own[group + 1]; ++i) {
        int source = groups->own[i], before = crosses(part, source);

        part->in[source] = step > 0;
        part->sums.transfer += (crosses(part, source) - before) * groups->sources[source].transfer;
    }
    for (int i = groups->first_into[group]; i < groups->first_into[group + 1]; ++i) {
        int source = groups->into[i], before = crosses(part, source);

        part->takers[source] += step;
        part->sums.transfer += (crosses(part, source) - before) * groups->sources[source].transfer;
    }
}

static double part_on_accelerator(const search_t *search)
{
    const sums_t *sums = &search->part.sums;

    return sums->size > search->problem->memory ? INFINITY : sums->accelerator + sums->transfer;
}

/* Whether the part is too large: times and sizes only grow with the part, so nothing above a part
 * too large has to be looked at. Transfers may shrink, so they do not count here. */
static bool is_too_large(const search_t *search)
{
    const sums_t *sums = &search->part.sums;

    return (sums->accelerator > search->limit || sums->size > search->problem->memory) &&
           (search->problem->cpus == 0 || sums->cpu > search->limit);
}

/* Decides where to put the part, given the best loads of what is below it: updates the loads
 * above. */
static void use_part(search_t *search, int above, int below)
{
    const double *from = search->best + (size_t)below * (size_t)search->slots;
    double *to = search->best + (size_t)above * (size_t)search->slots;
    double accelerator = part_on_accelerator(search), cpu = search->part.sums.cpu;
    int row = search->problem->accelerators + 1;

    ++search->pairs;
    if (accelerator <= search->limit) {
        for (int c = 0; c <= search->problem->cpus; ++c) {
            for (int slot = c * row + 1; slot < (c + 1) * row; ++slot) {
                double load = from[slot - 1] > accelerator ? from[slot - 1] : accelerator;

                to[slot] = load < to[slot] ? load : to[slot];
            }
        }
    }
    if (cpu <= search->limit) {
        for (int slot = row; slot < search->slots; ++slot) {
            double load = from[slot - row] > cpu ? from[slot - row] : cpu;

            to[slot] = load < to[slot] ? load : to[slot];
        }
    }
}

static bool use(void *arg, int above, int below)
{
    use_part(arg, above, below);
    return false;
}

static bool enter(void *arg, int group, int depth)
{
    search_t *search = arg;
    const ap_placement_groups_t *groups = search->groups;
    part_t *part = &search->part;

    search->before[depth] = part->sums;
    change(part, group, 1);
    part->sums.accelerator += groups->accelerator[group];
    part->sums.cpu += groups->cpu[group];
    part->sums.size += groups->size[group];
    return !is_too_large(search);
}

static void leave(void *arg, int group, int depth)
{
    search_t *search = arg;

    change(&search->part, group, -1);
    search->part.sums = search->before[depth];
}

/* Fills the table set by set; false when that takes too long. Loads are for at most so many
 * devices, so the minimum is passed on to larger slots. */
static bool run(search_t *search, ap_ideals_walk_t *walk)
{
    int count = ap_ideals_count(search->ideals), row = search->problem->accelerators + 1;

    for (int slot = 0; slot < search->slots; ++slot) {
        search->best[slot] = 0.0;
    }
    for (int ideal = 1; ideal < count && search->pairs < MOST_PAIRS; ++ideal) {
        double *best = search->best + (size_t)ideal * (size_t)search->slots;

        for (int slot = 0; slot < search->slots; ++slot) {
            best[slot] = INFINITY;
        }
        (void)ap_ideals_walk(walk, ideal);
        for (int slot = 1; slot < search->slots; ++slot) {
            if (slot % row != 0 && best[slot - 1] < best[slot]) {
                best[slot] = best[slot - 1];
            }
            if (slot >= row && best[slot - row] < best[slot]) {
                best[slot] = best[slot - row];
            }
        }
    }
    return search->pairs < MOST_PAIRS;
}

static bool explains(void *arg, int above, int below)
{
    search_t *search = arg;
    explanation_t *wanted = &search->wanted;
    const double *from = search->best + (size_t)below * (size_t)search->slots;
    int row = search->problem->accelerators + 1, slot = wanted->slot;

    (void)above;
    wanted->below = below;
    if (slot % row != 0 && fmax(from[slot - 1], part_on_accelerator(search)) <= wanted->load) {
        wanted->on_cpu = false;
        return true;
    }
    wanted->on_cpu = true;
    return slot >= row && fmax(from[slot - row], search->part.sums.cpu) <= wanted->load;
}

/* Follows the loads back. Devices that stay empty come last of their kind. */
static void trace(search_t *search, ap_ideals_walk_t *walk, int *device_of_group)
{
    int row = search->problem->accelerators + 1, ideal = ap_ideals_count(search->ideals) - 1;
    explanation_t *wanted = &search->wanted;
    int accelerators = 0, cpus = 0;

    walk->visit = explains;
    wanted->slot = search->slots - 1;
    wanted->load = search->best[(size_t)ideal * (size_t)search->slots + (size_t)wanted->slot];
    while (ideal != 0) {
        int device;

        ap_ideals_walk_reset(walk);
        if (!ap_ideals_walk(walk, ideal)) {
            /* A load that one device less gives as well. */
            const double *best = search->best + (size_t)ideal * (size_t)search->slots;

            wanted->slot -=
                wanted->slot % row != 0 && best[wanted->slot - 1] <= wanted->load ? 1 : row;
            continue;
        }
        device = wanted->on_cpu ? search->problem->accelerators + cpus++ : accelerators++;
        for (int group = 0; group < search->groups->count; ++group) {
            if (ap_ideals_has(search->ideals, ideal, group) &&
                !ap_ideals_has(search->ideals, wanted->below, group)) {
                device_of_group[group] = device;
            }
        }
        wanted->slot -= wanted->on_cpu ? row : 1;
        ideal = wanted->below;
    }
}

/* One answer over the given down-sets; XM_ERR_NO_SOLUTION when there is none below the limit. */
static xm_status_t solve_over(search_t *search, int *device_of_group, double *load)
{
    const ap_placement_groups_t *groups = search->groups;
    size_t count = (size_t)ap_ideals_count(search->ideals);
    xm_arena_t *arena = &search->arena;
    ap_ideals_walk_t walk = {
        .ideals = search->ideals, .enter = enter, .leave = leave, .visit = use, .arg = search};
    xm_status_t status;

    search->best = xm_arena_get(arena, count * (size_t)search->slots, sizeof(double));
    search->before = xm_arena_get(arena, (size_t)groups->count + 1, sizeof(*search->before));
    search->part = (part_t){.groups = groups};
    search->part.in = xm_arena_get(arena, (size_t)groups->source_count, sizeof(bool));
    search->part.takers = xm_arena_get(arena, (size_t)groups->source_count, sizeof(int));
    status = ap_ideals_walk_init(&walk, arena);
    if (status == XM_OK && !run(search, &walk)) {
        status = xm_error_set(XM_ERR_TIMEOUT, "more than %d parts to look at", MOST_PAIRS);
    }
    if (status == XM_OK) {
        *load = search->best[count * (size_t)search->slots - 1];
        if (isinf(*load)) {
            status = XM_NO_SOLUTION(
                "no contiguous placement fits %d accelerators of %g and %d CPUs",
                search->problem->accelerators, search->problem->memory, search->problem->cpus);
        } else {
            trace(search, &walk, device_of_group);
        }
    }
    xm_arena_clear(arena);
    return status;
}

/* First along one order, then over all down-sets with that answer's load as the limit. */
static xm_status_t solve_groups(const ap_placement_problem_t *problem,
                                const ap_placement_groups_t *groups, int *device_of_group,
                                ap_placement_t *placement)
{
    search_t search = {.problem = problem,
                       .groups = groups,
                       .limit = INFINITY,
                       .slots = (problem->cpus + 1) * (problem->accelerators + 1)};
    int most = MOST_CELLS / search.slots < MOST_IDEALS ? MOST_CELLS / search.slots : MOST_IDEALS;
    ap_ideals_t *chain, *all;
    double load = INFINITY;
    xm_status_t along, status = ap_ideals_create_chain(groups->count, groups->order,
                                                       groups->order_count, true, &chain);

    XM_TRY(status);
    search.ideals = chain;
    along = solve_over(&search, device_of_group, &load);
    ap_ideals_destroy(chain);
    if (along != XM_OK && along != XM_ERR_NO_SOLUTION) {
        return along;
    }
    status = ap_ideals_create(groups->count, groups->order, groups->order_count, most, &all);
    if (status == XM_ERR_NO_SOLUTION) {
        return along;
    }
    XM_TRY(status);
    search.ideals = all;
    search.pairs = 0;
    search.limit = load * (1.0 + 1e-12);
    status = solve_over(&search, device_of_group, &load);
    placement->exact = status == XM_OK;
    status = status == XM_ERR_TIMEOUT ? along : status;
    placement->ideals = ap_ideals_count(all);
    placement->pairs = search.pairs;
    ap_ideals_destroy(all);
    return status;
}

static xm_status_t check_problem(const ap_placement_problem_t *problem)
{
    if (problem->node_count < 1 || problem->accelerators < 0 || problem->cpus < 0 ||
        problem->accelerators + problem->cpus < 1 ||
        (int64_t)(problem->cpus + 1) * (problem->accelerators + 1) > MOST_SLOTS) {
        return XM_INVALID("%d operators on %d accelerators and %d CPUs: at least one of each kind, "
                          "and not that many devices",
                          problem->node_count, problem->accelerators, problem->cpus);
    }
    return XM_OK;
}

xm_status_t ap_placement_solve(const ap_placement_problem_t *problem, ap_placement_t *placement)
{
    ap_placement_groups_t groups;
    ap_placement_t found = {0};
    int *device_of_group;
    xm_status_t status;

    XM_TRY(check_problem(problem));
    XM_TRY(ap_placement_groups_create(problem, true, &groups));
    device_of_group = xm_arena_get(&groups.arena, (size_t)groups.count, sizeof(*device_of_group));
    status = device_of_group != NULL ? ap_placement_init(problem, &found) : no_memory(groups.count);
    XM_THEN(status, solve_groups(problem, &groups, device_of_group, &found));
    XM_THEN(status, ap_placement_finish(problem, &groups, device_of_group, &found));
    ap_placement_groups_clear(&groups);
    if (status != XM_OK) {
        ap_placement_clear(&found);
        return status;
    }
    *placement = found;
    return XM_OK;
}
