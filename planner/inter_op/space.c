/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stage-slicing problem laid out for searching: where each submesh can stand, the configurations
 * of each range that can matter, and the boundary costs that have been asked for so far. The tables
 * of a large problem have millions of entries of which the search reads some many thousand times,
 * so each cell is boiled down once: a Pareto staircase of (cost, stages that may follow), and the
 * configurations that no other one replaces.
 *
 * Boundary costs are not a table to be filled but a question to be asked, because each is a planned
 * resharding; blocks remember the answers.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/inter_op/inter_op_private.h"

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* Whether a submesh can take the first of the last @p devices_left devices. Stages take consecutive
 * devices in order, so where a stage begins follows from what is left. Within a host it must not
 * run over the host's end; a submesh of whole hosts must begin with a host. */
static bool can_stand(const ap_inter_op_space_t *space, int submesh, int devices_left)
{
    const ap_inter_op_problem_t *problem = space->problem;
    const ap_submesh_t *shape = &problem->submeshes[submesh];
    int first = space->total - devices_left;
    int host = first / problem->devices_per_host, within = first % problem->devices_per_host;

    if (shape->hosts * shape->devices > devices_left) {
        return false;
    }
    if (!problem->ordered) {
        return true;
    }
    return within + shape->devices <= problem->devices_per_host &&
           (problem->allowed == NULL || problem->allowed[submesh * problem->hosts + host]);
}

/* Answers that question for all numbers of devices at once. */
static xm_status_t place_submeshes(ap_inter_op_space_t *space)
{
    size_t columns = (size_t)space->total + 1;

    space->size = xm_arena_get(&space->arena, (size_t)space->submeshes, sizeof(*space->size));
    space->fits =
        xm_arena_get(&space->arena, (size_t)space->submeshes * columns, sizeof(*space->fits));
    space->low = xm_arena_get(&space->arena, columns, sizeof(*space->low));
    space->high = xm_arena_get(&space->arena, columns, sizeof(*space->high));
    XM_NEED_MEMORY(!space->arena.failed, "%d submeshes", space->submeshes);
    for (int s = 0; s < space->submeshes; ++s) {
        const ap_submesh_t *shape = &space->problem->submeshes[s];

        space->size[s] = shape->hosts * shape->devices;
        for (int devices = 1; devices <= space->total; ++devices) {
            space->fits[(size_t)s * columns + (size_t)devices] = can_stand(space, s, devices);
        }
    }
    return XM_OK;
}

/* Adds an entry to the staircase of a cell, which has @p count steps in @p steps; returns their new
 * number. A step that costs no more and allows no fewer stages after it makes another one useless.
 * So on a staircase costs and allowed stages both rise, and the first step that allows enough is
 * the cheapest. */
static size_t add_step(ap_inter_op_step_t *steps, size_t count, double cost, int32_t successors)
{
    size_t at = 0, end;

    /* The new step belongs behind all steps that cost no more. */
    while (at < count && steps[at].cost <= cost) {
        ++at;
    }
    if (at > 0 && steps[at - 1].successors >= successors) {
        return count;
    }
    end = at;
    /* Dearer steps that allow no more are useless now. */
    while (end < count && steps[end].successors <= successors) {
        ++end;
    }
    /* Nothing is useless: the steps behind move up by one. */
    if (end == at) {
        memmove(&steps[at + 1], &steps[at], (count - at) * sizeof(*steps));
        ++count;
    } else {
        memmove(&steps[at + 1], &steps[end], (count - end) * sizeof(*steps));
        count -= end - at - 1;
    }
    steps[at] = (ap_inter_op_step_t){cost, successors};
    return count;
}

/* Whether a configuration kept before can replace this one in every plan: its neighbours see the
 * same boundary layouts, it costs no more, and its memory allows as many stages after it. */
static bool is_served(const ap_inter_op_space_t *space, const ap_inter_op_choice_t *kept,
                      const ap_inter_op_choice_t *choice)
{
    return space->pair_of[kept->state] == space->pair_of[choice->state] &&
           kept->cost <= choice->cost && kept->successors >= choice->successors;
}

/* Adds a configuration to those of a cell, of which @p count are in @p kept, in the place of the
 * first one that it replaces; returns their new number. Keeping that place keeps the order of
 * the table, by which ties are broken. */
static size_t add_choice(const ap_inter_op_space_t *space, ap_inter_op_choice_t *kept, size_t count,
                         const ap_inter_op_choice_t *choice)
{
    size_t left = 0;
    bool placed = false;

    for (size_t k = 0; k < count; ++k) {
        /* Of equal configurations the earlier one in the table stays. */
        if (is_served(space, &kept[k], choice)) {
            return count;
        }
    }
    for (size_t k = 0; k < count; ++k) {
        if (!is_served(space, choice, &kept[k])) {
            kept[left++] = kept[k];
        } else if (!placed) {
            kept[left++] = *choice;
            placed = true;
        }
    }
    if (!placed) {
        kept[left++] = *choice;
    }
    return left;
}

/* Reads one cell of the tables; refuses NaN and negative costs. A comparison that is false for NaN
 * does both. Infinite costs and entries that fit nowhere are left out here, once. */
static xm_status_t read_cell(ap_inter_op_space_t *space, int first, int last, int submesh,
                             ap_inter_op_step_t *steps, size_t *step_count,
                             ap_inter_op_choice_t *choices, size_t *choice_count)
{
    const ap_inter_op_problem_t *problem = space->problem;
    size_t entry = ap_inter_op_cell(problem, first, last, submesh) * (size_t)problem->config_count;

    *step_count = *choice_count = 0;
    for (int config = 0; config < problem->config_count; ++config, ++entry) {
        ap_inter_op_choice_t choice = {.cost = problem->cost[entry],
                                       .successors = space->layers,
                                       .state = submesh * problem->config_count + config};

        if (!(choice.cost >= 0.0)) {
            return XM_INVALID(
                "layers %d to %d on submesh %d, configuration %d: the cost %g is not a time", first,
                last, submesh, config, choice.cost);
        }
        if (problem->max_successors != NULL && problem->max_successors[entry] < choice.successors) {
            choice.successors = problem->max_successors[entry];
        }
        if (choice.cost < INFINITY && choice.successors >= 0) {
            *step_count = add_step(steps, *step_count, choice.cost, choice.successors);
            *choice_count = add_choice(space, choices, *choice_count, &choice);
        }
    }
    return XM_OK;
}

/* Makes room for one more cell behind what is used. */
static xm_status_t make_room(ap_inter_op_space_t *space, size_t used_steps, size_t used_choices,
                             size_t *steps, size_t *choices)
{
    size_t more = (size_t)space->problem->config_count;

    return xm_array_reserve(&space->staircase, steps, used_steps + more,
                            sizeof(*space->staircase)) &&
                   xm_array_reserve(&space->choice, choices, used_choices + more,
                                    sizeof(*space->choice))
               ? XM_OK
               : XM_NO_MEMORY("%zu stages", space->cells);
}

/* Finds one range of layers for each row of the tables, -1 where no range has it. Ranges of equal
 * layers share a row, so each row is read once; going from the last range down leaves the first one
 * of each row. */
static xm_status_t list_rows(ap_inter_op_space_t *space, int **range_of_row, int *rows)
{
    const ap_inter_op_problem_t *problem = space->problem;
    int layers = problem->layers, ranges = layers * layers;
    int *range_of;

    *rows = problem->range_row != NULL ? 0 : ranges;
    for (int range = 0; problem->range_row != NULL && range < ranges; ++range) {
        if (range / layers <= range % layers && problem->range_row[range] >= *rows) {
            *rows = problem->range_row[range] + 1;
        }
    }
    range_of = xm_arena_take(&space->arena, (size_t)*rows * sizeof(*range_of));
    XM_NEED_MEMORY(range_of, "%d ranges of layers", *rows);
    for (int row = 0; row < *rows; ++row) {
        range_of[row] = -1;
    }
    for (int range = ranges - 1; range >= 0; --range) {
        if (range / layers <= range % layers) {
            range_of[problem->range_row != NULL ? problem->range_row[range] : range] = range;
        }
    }
    *range_of_row = range_of;
    return XM_OK;
}

/* Tables over ranges are [submesh][first][last] with all ranges, tables of the problem only have
 * its rows; the former are small enough for that, and are read as vectors. */
static xm_status_t allocate_costs(ap_inter_op_space_t *space, int rows)
{
    size_t layers = (size_t)space->layers, submeshes = (size_t)space->submeshes;

    space->cells = (size_t)rows * submeshes;
    space->staircase_at =
        xm_arena_take(&space->arena, (space->cells + 1) * sizeof(*space->staircase_at));
    space->choice_at = xm_arena_take(&space->arena, (space->cells + 1) * sizeof(*space->choice_at));
    space->least = xm_arena_take(&space->arena, space->cells * sizeof(*space->least));
    space->cheapest =
        xm_arena_take(&space->arena, submeshes * layers * layers * sizeof(*space->cheapest));
    space->reach = xm_arena_take(&space->arena, submeshes * layers * sizeof(*space->reach));
    space->need = xm_arena_take(&space->arena, (layers + 1) * sizeof(*space->need));
    return space->arena.failed ? XM_NO_MEMORY("%zu stages", space->cells) : XM_OK;
}

/* Reads every row of the tables on every submesh. Cells of rows that no range uses stay empty. */
static xm_status_t read_costs(ap_inter_op_space_t *space)
{
    size_t steps = 0, choices = 0, used_steps = 0, used_choices = 0, cell = 0;
    int *range_of_row = NULL, rows;
    xm_status_t status = list_rows(space, &range_of_row, &rows);

    XM_THEN(status, allocate_costs(space, rows));
    for (int row = 0; status == XM_OK && row < rows; ++row) {
        int first = range_of_row[row] / space->layers, last = range_of_row[row] % space->layers;

        for (int submesh = 0; status == XM_OK && submesh < space->submeshes; ++submesh, ++cell) {
            size_t step_count = 0, choice_count = 0;

            space->staircase_at[cell] = used_steps;
            space->choice_at[cell] = used_choices;
            /* A cell has at most one step and one choice for each configuration. */
            status = make_room(space, used_steps, used_choices, &steps, &choices);
            if (status == XM_OK && range_of_row[row] >= 0) {
                status = read_cell(space, first, last, submesh, space->staircase + used_steps,
                                   &step_count, space->choice + used_choices, &choice_count);
            }
            used_steps += step_count;
            used_choices += choice_count;
        }
    }
    if (status == XM_OK) {
        space->staircase_at[cell] = used_steps;
        space->choice_at[cell] = used_choices;
    }
    return status;
}

/* The fewest devices that the layers from each on take, from the last layer back. A place with
 * fewer devices leads nowhere. */
static void find_need(ap_inter_op_space_t *space)
{
    int layers = space->layers;

    space->need[layers] = 0;
    for (int first = layers - 1; first >= 0; --first) {
        int fewest = space->total + 1;

        for (int s = 0; s < space->submeshes; ++s) {
            const double *cost = ap_inter_op_stages(space, s, first);

            for (int last = first; last < space->reach[s * layers + first]; ++last) {
                int devices = space->size[s] + space->need[last + 1];

                fewest = cost[last] < INFINITY && devices < fewest ? devices : fewest;
            }
        }
        space->need[first] = fewest;
    }
}

/* Sets the costs that the relaxed programme goes by: of each cell the cheapest step that allows so
 * many stages and is within the limit. The costs are copied from rows of ranges to
 * [submesh][first][last], so that the relaxed programme reads them as vectors. */
void ap_inter_op_space_cheapest(ap_inter_op_space_t *space, int successors, double limit)
{
    for (size_t cell = 0; cell < space->cells; ++cell) {
        size_t at = space->staircase_at[cell], end = space->staircase_at[cell + 1];

        /* The first step that allows enough is the cheapest that does. */
        while (at < end && space->staircase[at].successors < successors) {
            ++at;
        }
        space->least[cell] =
            at < end && space->staircase[at].cost <= limit ? space->staircase[at].cost : INFINITY;
    }
    for (int s = 0; s < space->submeshes; ++s) {
        for (int first = 0; first < space->layers; ++first) {
            double *cost = ap_inter_op_stages(space, s, first);
            int reach = first;

            for (int last = first; last < space->layers; ++last) {
                cost[last] = space->least[ap_inter_op_cell(space->problem, first, last, s)];
                /* `reach` is one behind the last layer to which any stage leads, so loops need
                 * not look further. */
                reach = cost[last] < INFINITY ? last + 1 : reach;
            }
            space->reach[s * space->layers + first] = reach;
        }
    }
    find_need(space);
}

/* Reads the numbers of the boundary layouts (ports) of one side and how many there are. A layout
 * must not belong to submeshes of different sizes: the boundary function is given the layout and
 * where the later stage begins, and must be able to tell the stage's devices from that. */
static xm_status_t read_ports(ap_inter_op_space_t *space, const int *ports, int *of, int *count)
{
    int *submesh = xm_arena_take(&space->arena, (size_t)space->states * sizeof(*submesh));
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(submesh, "%d ports", space->states);
    for (int p = 0; p < space->states; ++p) {
        submesh[p] = -1;
    }
    *count = 0;
    for (int state = 0; state < space->states && status == XM_OK; ++state) {
        /* Where none are given, every state is a layout of its own, and neighbours see all of
         * it. */
        int port = ports != NULL ? ports[state] : state;
        int at = state / space->problem->config_count;

        if (port < 0 || port >= space->states) {
            status = XM_INVALID("port %d of state %d is outside 0 to %d", port, state,
                                space->states - 1);
        } else if (submesh[port] >= 0 && space->size[submesh[port]] != space->size[at]) {
            status = XM_INVALID("port %d belongs to stages of %d and of %d devices", port,
                                space->size[submesh[port]], space->size[at]);
        } else {
            submesh[port] = at;
            of[state] = port;
            *count = port >= *count ? port + 1 : *count;
        }
    }
    return status;
}

/* States of one submesh and one pair of boundary layouts are the same to their neighbours, so
 * they get one number. The search within a submesh is quadratic in its configurations, of which
 * there are few. */
static void number_pairs(ap_inter_op_space_t *space)
{
    int configs = space->problem->config_count;

    space->pairs = 0;
    for (int state = 0; state < space->states; ++state) {
        int other = state / configs * configs;

        while (other < state && (space->in_of[other] != space->in_of[state] ||
                                 space->out_of[other] != space->out_of[state])) {
            ++other;
        }
        space->pair_of[state] = other < state ? space->pair_of[other] : space->pairs++;
    }
}

/* Gives each kind of boundary a row, in the order of the first layers. A transformer has one
 * kind. */
static xm_status_t number_rows(ap_inter_op_space_t *space)
{
    const int *kind = space->problem->boundary_kind;
    int layers = space->layers;

    for (int layer = 1; layer < layers; ++layer) {
        int same = kind == NULL ? layer : 1;

        if (kind != NULL && (kind[layer] < 0 || kind[layer] >= layers)) {
            return XM_INVALID("the boundary before layer %d is of kind %d, not 0 to %d", layer,
                              kind[layer], layers - 1);
        }
        while (same < layer && kind[same] != kind[layer]) {
            ++same;
        }
        space->row_of[layer] = same < layer ? space->row_of[same] : space->rows++;
    }
    return XM_OK;
}

/* Places of boundaries: where a later stage begins, as far as it matters to the cost. */
static xm_status_t number_places(ap_inter_op_space_t *space)
{
    const int *place = space->problem->boundary_place;

    for (int first = 0; first < space->total; ++first) {
        /* Without placement there is one place, as nothing is known about where stages begin. */
        int at = !space->problem->ordered ? 0 : place != NULL ? place[first] : first;

        if (at < 0 || at >= space->total) {
            return XM_INVALID("device %d is a boundary place %d, not 0 to %d", first, at,
                              space->total - 1);
        }
        space->place_of[first] = at;
        space->places = at >= space->places ? at + 1 : space->places;
    }
    return XM_OK;
}

/* Without boundaries all states have layout 0 on both sides, so that every range has one pair
 * per submesh. */
static xm_status_t open_boundaries(ap_inter_op_space_t *space)
{
    const ap_inter_op_problem_t *problem = space->problem;
    size_t states = (size_t)space->states;

    space->in_of = xm_arena_get(&space->arena, states, sizeof(int));
    space->out_of = xm_arena_get(&space->arena, states, sizeof(int));
    space->pair_of = xm_arena_get(&space->arena, states, sizeof(int));
    space->row_of = xm_arena_get(&space->arena, (size_t)space->layers, sizeof(int));
    space->place_of = xm_arena_get(&space->arena, (size_t)space->total, sizeof(int));
    XM_NEED_MEMORY(!space->arena.failed, "%zu states", states);
    space->in_ports = space->out_ports = 1;
    if (problem->boundary != NULL) {
        XM_TRY(read_ports(space, problem->out_port, space->out_of, &space->out_ports));
        XM_TRY(read_ports(space, problem->in_port, space->in_of, &space->in_ports));
        XM_TRY(number_rows(space));
        XM_TRY(number_places(space));
        space->block = xm_arena_get(&space->arena, (size_t)space->rows * (size_t)space->places,
                                    sizeof(*space->block));
        XM_NEED_MEMORY(space->block, "the boundary table");
    }
    number_pairs(space);
    return XM_OK;
}

static size_t block_index(const ap_inter_op_space_t *space, int layer, int devices)
{
    return (size_t)space->row_of[layer] * (size_t)space->places +
           (size_t)space->place_of[space->total - devices];
}

/* The block of costs of a kind of boundary at a place, made on first use. NaN says "not asked
 * yet". */
xm_status_t ap_inter_op_space_block(ap_inter_op_space_t *space, int layer, int devices,
                                    double **block)
{
    /* Costs and their flags share a block, the flags behind the costs. */
    size_t cells = ap_inter_op_block_at(space, space->out_ports, 0);
    double **slot = &space->block[block_index(space, layer, devices)];

    if (*slot == NULL) {
        *slot = xm_arena_take(&space->arena, cells * (sizeof(**slot) + sizeof(bool)));
        XM_NEED_MEMORY(*slot, "%zu boundary costs", cells);
        for (size_t i = 0; i < cells; ++i) {
            (*slot)[i] = NAN;
        }
    }
    *block = *slot;
    return XM_OK;
}

/* Asks for a boundary's lower bound, or with @p settle for its cost. A cost below its own bound
 * would make the search wrong without a sign of it, so it is refused. */
xm_status_t ap_inter_op_space_ask(ap_inter_op_space_t *space, int layer, int devices, int out,
                                  int in, bool settle, double *block)
{
    const ap_inter_op_problem_t *problem = space->problem;
    ap_inter_op_boundary_t at = {layer, out, in, problem->ordered ? space->total - devices : -1};
    size_t cell = ap_inter_op_block_at(space, out, in);
    bool least = !settle && problem->boundary_lower_bound != NULL;
    double seconds = least ? problem->boundary_lower_bound(problem->boundary_arg, &at)
                           : problem->boundary(problem->boundary_arg, &at);

    if (!(seconds >= 0.0)) {
        return XM_INVALID("the boundary before layer %d costs %g: not a time", layer, seconds);
    }
    if (settle && seconds < block[cell]) {
        return XM_INVALID("the boundary before layer %d costs %.9g, less than its bound, %.9g",
                          layer, seconds, block[cell]);
    }
    block[cell] = seconds;
    /* An infinite bound is final: the cost cannot be more. */
    ap_inter_op_settled(space, block)[cell] = !least || seconds == INFINITY;
    return XM_OK;
}

/* Lays the problem out. Boundaries come before costs, because configurations are compared within
 * their boundary layouts. */
xm_status_t ap_inter_op_space_open(ap_inter_op_space_t *space, const ap_inter_op_problem_t *problem)
{
    *space = (ap_inter_op_space_t){.problem = problem,
                                   .layers = problem->layers,
                                   .states = problem->submesh_count * problem->config_count,
                                   .submeshes = problem->submesh_count,
                                   .total = problem->hosts * problem->devices_per_host};
    /* A plan has at most one stage per layer and per device, so larger limits are none. */
    space->most_stages = min_int(space->layers, space->total);
    space->counts_stages = problem->min_stages > 1 ||
                           (problem->max_stages > 0 && problem->max_stages < space->most_stages);
    if (problem->max_stages > 0) {
        space->most_stages = min_int(space->most_stages, problem->max_stages);
    }
    XM_TRY(place_submeshes(space));
    XM_TRY(open_boundaries(space));
    XM_TRY(read_costs(space));
    XM_TRY(ap_inter_op_band_open(space, &space->arena, NULL, &space->everywhere));
    space->before = xm_arena_take(&space->arena, space->everywhere.size * sizeof(double));
    space->after = xm_arena_take(&space->arena, space->everywhere.size * sizeof(double));
    return space->arena.failed ? XM_NO_MEMORY("%d layers", space->layers) : XM_OK;
}

/* Also closes a space that could not be opened completely. */
void ap_inter_op_space_close(ap_inter_op_space_t *space)
{
    free(space->choice);
    free(space->staircase);
    xm_arena_clear(&space->arena);
}
