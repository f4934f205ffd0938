/* A stage-slicing problem laid out for searching: what fits where, what memory allows, boundaries,
 * and the relaxed programme without boundaries that bounds everything. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/inter_op_private.h"

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static size_t cell_index(const ap_inter_op_space_t *space, int submesh, int first, int last)
{
    return ((size_t)submesh * (size_t)space->layers + (size_t)first) * (size_t)space->layers +
           (size_t)last;
}

/* Whether a submesh can take the first of the last @p devices_left devices. */
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

static xm_status_t place_submeshes(ap_inter_op_space_t *space)
{
    size_t columns = (size_t)space->total + 1;

    space->size = malloc((size_t)space->submeshes * sizeof(*space->size));
    space->fits = calloc((size_t)space->submeshes * columns, sizeof(*space->fits));
    space->low = malloc(columns * sizeof(*space->low));
    space->high = malloc(columns * sizeof(*space->high));
    if (space->size == NULL || space->fits == NULL || space->low == NULL || space->high == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d submeshes", space->submeshes);
    }
    for (int s = 0; s < space->submeshes; ++s) {
        const ap_submesh_t *shape = &space->problem->submeshes[s];

        space->size[s] = shape->hosts * shape->devices;
        for (int devices = 1; devices <= space->total; ++devices) {
            space->fits[(size_t)s * columns + (size_t)devices] = can_stand(space, s, devices);
        }
    }
    return XM_OK;
}

/* Adds an entry to the steps of a cell, of which @p count stand in @p steps; returns their new
 * number. A step that costs no more and allows no less makes another one useless. */
static size_t add_step(ap_inter_op_step_t *steps, size_t count, double cost, int32_t successors)
{
    size_t at = 0, end;

    while (at < count && steps[at].cost <= cost) {
        ++at;
    }
    if (at > 0 && steps[at - 1].successors >= successors) {
        return count;
    }
    end = at;
    while (end < count && steps[end].successors <= successors) {
        ++end;
    }
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

/* Stages that can follow one that ends in @p last on a submesh, memory aside. */
static int most_after(const ap_inter_op_space_t *space, int last, int submesh)
{
    return min_int(space->total - space->size[submesh], space->layers - 1 - last);
}

/* Reads one cell of the table into steps; refuses NaN and negative costs. */
static xm_status_t read_cell(ap_inter_op_space_t *space, int submesh, int first, int last,
                             ap_inter_op_step_t *steps, size_t *count)
{
    const ap_inter_op_problem_t *problem = space->problem;
    size_t entry = ap_inter_op_entry(problem, first, last, submesh);
    int most = most_after(space, last, submesh);

    *count = 0;
    for (int config = 0; config < problem->config_count; ++config, ++entry) {
        double cost = problem->cost[entry];
        int32_t successors = most;

        if (!(cost >= 0.0)) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "layers %d to %d on submesh %d, configuration %d: the cost %g is "
                                "not a time",
                                first, last, submesh, config, cost);
        }
        if (problem->max_successors != NULL && problem->max_successors[entry] < most) {
            successors = problem->max_successors[entry];
        }
        if (cost < INFINITY && successors >= 0) {
            space->memory_limits = space->memory_limits || successors < most;
            *count = add_step(steps, *count, cost, successors);
        }
    }
    return XM_OK;
}

static xm_status_t read_costs(ap_inter_op_space_t *space)
{
    size_t cells = (size_t)space->submeshes * (size_t)space->layers * (size_t)space->layers;
    size_t capacity = 2 * cells + (size_t)space->problem->config_count + 1, used = 0;

    space->stair_at = malloc((cells + 1) * sizeof(*space->stair_at));
    space->cheapest = malloc(cells * sizeof(*space->cheapest));
    space->stair = malloc(capacity * sizeof(*space->stair));
    if (space->stair_at == NULL || space->cheapest == NULL || space->stair == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %zu stages", cells);
    }
    for (size_t cell = 0; cell < cells; ++cell) {
        int last = (int)(cell % (size_t)space->layers);
        int first = (int)(cell / (size_t)space->layers % (size_t)space->layers);
        int submesh = (int)(cell / (size_t)space->layers / (size_t)space->layers);
        size_t count = 0;

        space->stair_at[cell] = used;
        if (used + (size_t)space->problem->config_count > capacity) {
            ap_inter_op_step_t *grown = realloc(space->stair, 2 * capacity * sizeof(*space->stair));

            if (grown == NULL) {
                return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %zu stages", cells);
            }
            space->stair = grown;
            capacity *= 2;
        }
        if (first <= last) {
            xm_status_t status =
                read_cell(space, submesh, first, last, space->stair + used, &count);

            if (status != XM_OK) {
                return status;
            }
        }
        used += count;
    }
    space->stair_at[cells] = used;
    return XM_OK;
}

void ap_inter_op_space_cheapest(ap_inter_op_space_t *space, int successors)
{
    size_t cells = (size_t)space->submeshes * (size_t)space->layers * (size_t)space->layers;

    for (size_t cell = 0; cell < cells; ++cell) {
        size_t at = space->stair_at[cell], end = space->stair_at[cell + 1];

        while (at < end && space->stair[at].successors < successors) {
            ++at;
        }
        space->cheapest[cell] = at < end ? space->stair[at].cost : INFINITY;
    }
}

/* Port numbers of one side and how many there are; refuses a port of two submeshes. */
static xm_status_t read_ports(const ap_inter_op_space_t *space, const int *ports, int *of,
                              int *count)
{
    int *submesh = malloc((size_t)space->states * sizeof(*submesh));
    xm_status_t status = XM_OK;

    if (submesh == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d ports", space->states);
    }
    for (int p = 0; p < space->states; ++p) {
        submesh[p] = -1;
    }
    *count = 0;
    for (int state = 0; state < space->states && status == XM_OK; ++state) {
        int port = ports != NULL ? ports[state] : state;
        int at = state / space->problem->config_count;

        if (port < 0 || port >= space->states) {
            status = xm_error_set(XM_ERR_INVALID_ARGUMENT, "port %d of state %d is outside 0 to %d",
                                  port, state, space->states - 1);
        } else if (submesh[port] >= 0 && space->size[submesh[port]] != space->size[at]) {
            status = xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                  "port %d belongs to stages of %d and of %d devices", port,
                                  space->size[submesh[port]], space->size[at]);
        } else {
            submesh[port] = at;
            of[state] = port;
            *count = port >= *count ? port + 1 : *count;
        }
    }
    free(submesh);
    return status;
}

/* States of one submesh and one pair of ports are alike to their neighbours. */
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

/* Gives each kind of boundary a row, in the order of the first layers. */
static xm_status_t number_rows(ap_inter_op_space_t *space)
{
    const int *kind = space->problem->boundary_kind;
    int layers = space->layers;

    for (int layer = 1; layer < layers; ++layer) {
        int same = kind == NULL ? layer : 1;

        if (kind != NULL && (kind[layer] < 0 || kind[layer] >= layers)) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "the boundary before layer %d is of kind %d, not 0 to %d", layer,
                                kind[layer], layers - 1);
        }
        while (same < layer && kind[same] != kind[layer]) {
            ++same;
        }
        space->row_of[layer] = same < layer ? space->row_of[same] : space->rows++;
    }
    return XM_OK;
}

static xm_status_t number_places(ap_inter_op_space_t *space)
{
    const int *place = space->problem->boundary_place;

    for (int first = 0; first < space->total; ++first) {
        int at = !space->problem->ordered ? 0 : place != NULL ? place[first] : first;

        if (at < 0 || at >= space->total) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "device %d is a boundary place %d, not 0 to %d", first, at,
                                space->total - 1);
        }
        space->place_of[first] = at;
        space->places = at >= space->places ? at + 1 : space->places;
    }
    return XM_OK;
}

static xm_status_t open_boundaries(ap_inter_op_space_t *space)
{
    const ap_inter_op_problem_t *problem = space->problem;
    size_t states = (size_t)space->states;
    xm_status_t status;

    space->in_of = calloc(states, sizeof(int));
    space->out_of = calloc(states, sizeof(int));
    space->pair_of = calloc(states, sizeof(int));
    space->row_of = calloc((size_t)space->layers, sizeof(int));
    space->place_of = calloc((size_t)space->total, sizeof(int));
    if (space->in_of == NULL || space->out_of == NULL || space->pair_of == NULL ||
        space->row_of == NULL || space->place_of == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %zu states", states);
    }
    space->in_ports = space->out_ports = 1;
    if (problem->boundary != NULL) {
        status = read_ports(space, problem->out_port, space->out_of, &space->out_ports);
        if (status == XM_OK) {
            status = read_ports(space, problem->in_port, space->in_of, &space->in_ports);
        }
        if (status == XM_OK) {
            status = number_rows(space);
        }
        if (status == XM_OK) {
            status = number_places(space);
        }
        if (status != XM_OK) {
            return status;
        }
        space->block =
            calloc((size_t)space->rows * (size_t)space->places + 1, sizeof(*space->block));
        if (space->block == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for the boundary table");
        }
    }
    number_pairs(space);
    return XM_OK;
}

static size_t block_index(const ap_inter_op_space_t *space, int layer, int devices)
{
    return (size_t)space->row_of[layer] * (size_t)space->places +
           (size_t)space->place_of[space->total - devices];
}

xm_status_t ap_inter_op_space_block(ap_inter_op_space_t *space, int layer, int devices,
                                    double **block)
{
    size_t cells = ap_inter_op_block_at(space, space->out_ports, 0);
    double **slot = &space->block[block_index(space, layer, devices)];

    if (*slot == NULL) {
        *slot = malloc(cells * (sizeof(**slot) + sizeof(bool)));
        if (*slot == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %zu boundary costs", cells);
        }
        for (size_t i = 0; i < cells; ++i) {
            (*slot)[i] = NAN;
        }
    }
    *block = *slot;
    return XM_OK;
}

xm_status_t ap_inter_op_space_ask(ap_inter_op_space_t *space, int layer, int devices, int out,
                                  int in, bool settle, double *block)
{
    const ap_inter_op_problem_t *problem = space->problem;
    ap_inter_op_boundary_t at = {layer, out, in, problem->ordered ? space->total - devices : -1};
    size_t cell = ap_inter_op_block_at(space, out, in);
    bool least = !settle && problem->boundary_least != NULL;
    double seconds = least ? problem->boundary_least(problem->boundary_arg, &at)
                           : problem->boundary(problem->boundary_arg, &at);

    if (!(seconds >= 0.0)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "the boundary before layer %d costs %g: not a time", layer, seconds);
    }
    if (settle && seconds < block[cell]) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "the boundary before layer %d costs %.9g, less than its bound, %.9g",
                            layer, seconds, block[cell]);
    }
    block[cell] = seconds;
    ap_inter_op_settled(space, block)[cell] = !least || seconds == INFINITY;
    return XM_OK;
}

xm_status_t ap_inter_op_space_open(ap_inter_op_space_t *space, const ap_inter_op_problem_t *problem)
{
    xm_status_t status;

    *space = (ap_inter_op_space_t){.problem = problem,
                                   .layers = problem->layers,
                                   .states = problem->submesh_count * problem->config_count,
                                   .submeshes = problem->submesh_count,
                                   .total = problem->hosts * problem->devices_per_host};
    space->most_stages = min_int(space->layers, space->total);
    space->counts_stages = problem->min_stages > 1 ||
                           (problem->max_stages > 0 && problem->max_stages < space->most_stages);
    if (problem->max_stages > 0) {
        space->most_stages = min_int(space->most_stages, problem->max_stages);
    }
    status = place_submeshes(space);
    if (status == XM_OK) {
        status = read_costs(space);
    }
    return status == XM_OK ? open_boundaries(space) : status;
}

void ap_inter_op_space_close(ap_inter_op_space_t *space)
{
    for (size_t i = 0; space->block != NULL && i < (size_t)space->rows * (size_t)space->places;
         ++i) {
        free(space->block[i]);
    }
    free(space->block);
    free(space->place_of);
    free(space->row_of);
    free(space->pair_of);
    free(space->out_of);
    free(space->in_of);
    free(space->stair);
    free(space->cheapest);
    free(space->stair_at);
    free(space->high);
    free(space->low);
    free(space->fits);
    free(space->size);
}

double *ap_inter_op_relax_alloc(const ap_inter_op_space_t *space)
{
    return malloc(((size_t)space->total + 1) * ((size_t)space->layers + 1) * sizeof(double));
}

static void clear_values(const ap_inter_op_space_t *space, double *values)
{
    size_t count = ((size_t)space->total + 1) * ((size_t)space->layers + 1);

    for (size_t i = 0; i < count; ++i) {
        values[i] = INFINITY;
    }
}

/* The last layers that leave neither layers without devices nor devices without layers. */
static void last_layers(const ap_inter_op_space_t *space, int layer, int left, int *begin, int *end)
{
    *begin = left == 0 ? space->layers - 1 : layer;
    *end = left == 0 ? space->layers : space->layers - 1;
}

double ap_inter_op_relax_before(const ap_inter_op_space_t *space, double limit, bool use_max,
                                double *before)
{
    size_t columns = (size_t)space->total + 1;

    clear_values(space, before);
    before[ap_inter_op_relax_at(space, space->total, 0)] = 0.0;
    for (int layer = 0; layer < space->layers; ++layer) {
        for (int devices = 1; devices <= space->total; ++devices) {
            double base = before[ap_inter_op_relax_at(space, devices, layer)];

            for (int s = 0; base < INFINITY && s < space->submeshes; ++s) {
                int left = devices - space->size[s], begin, end;
                const double *cost;
                double *to;

                if (!space->fits[(size_t)s * columns + (size_t)devices]) {
                    continue;
                }
                last_layers(space, layer, left, &begin, &end);
                cost = &space->cheapest[cell_index(space, s, layer, 0)];
                to = &before[ap_inter_op_relax_at(space, left, 1)];
                for (int last = begin; last < end; ++last) {
                    double sum = base + cost[last], max = base > cost[last] ? base : cost[last];
                    double whole = use_max ? max : sum;

                    whole = cost[last] <= limit ? whole : INFINITY;
                    to[last] = whole < to[last] ? whole : to[last];
                }
            }
        }
    }
    return before[ap_inter_op_relax_at(space, 0, space->layers)];
}

/* Per number of devices left, the layers between which a table of values has any. */
static void find_windows(const ap_inter_op_space_t *space, const double *values, int *low,
                         int *high)
{
    for (int devices = 0; devices <= space->total; ++devices) {
        const double *row = &values[ap_inter_op_relax_at(space, devices, 0)];

        low[devices] = space->layers + 1;
        high[devices] = -1;
        for (int layer = 0; layer <= space->layers; ++layer) {
            if (row[layer] < INFINITY) {
                low[devices] = layer < low[devices] ? layer : low[devices];
                high[devices] = layer;
            }
        }
    }
}

/* Least cost from one place on. */
static double relax_place(const ap_inter_op_space_t *space, double limit, const double *after,
                          int layer, int devices)
{
    size_t columns = (size_t)space->total + 1;
    double best = INFINITY;

    for (int s = 0; s < space->submeshes; ++s) {
        int left = devices - space->size[s], begin, end;
        const double *cost, *from;

        if (!space->fits[(size_t)s * columns + (size_t)devices]) {
            continue;
        }
        last_layers(space, layer, left, &begin, &end);
        begin = space->low[left] - 1 > begin ? space->low[left] - 1 : begin;
        end = space->high[left] < end ? space->high[left] : end;
        cost = &space->cheapest[cell_index(space, s, layer, 0)];
        from = &after[ap_inter_op_relax_at(space, left, 1)];
        for (int last = begin; last < end; ++last) {
            double whole = cost[last] <= limit ? cost[last] + from[last] : INFINITY;

            best = whole < best ? whole : best;
        }
    }
    return best;
}

void ap_inter_op_relax_after(const ap_inter_op_space_t *space, double limit, const double *after,
                             const double *hopeful, double *values)
{
    bool in_place = after == values;

    clear_values(space, values);
    if (in_place) {
        values[ap_inter_op_relax_at(space, 0, space->layers)] = 0.0;
    }
    find_windows(space, after, space->low, space->high);
    for (int layer = space->layers - 1; layer >= 0; --layer) {
        for (int devices = layer == 0 ? space->total : 1; devices <= space->total; ++devices) {
            size_t place = ap_inter_op_relax_at(space, devices, layer);

            if (hopeful != NULL && !(hopeful[place] < INFINITY)) {
                continue;
            }
            values[place] = relax_place(space, limit, after, layer, devices);
            if (in_place && values[place] < INFINITY) {
                space->low[devices] = layer;
                space->high[devices] = layer > space->high[devices] ? layer : space->high[devices];
            }
        }
    }
}

double ap_inter_op_relax_limit(const ap_inter_op_space_t *space, double threshold, double *before)
{
    enum { ROUNDS = 3 };
    double rounds = (double)(space->problem->micro_batches - 1), limit = INFINITY;

    for (int i = 0;; ++i) {
        double sum = ap_inter_op_relax_before(space, limit, false, before);
        double longest = (threshold - sum) / rounds * (1.0 + 1e-12);

        if (!(rounds > 0.0) || !(longest < limit) || i == ROUNDS) {
            return limit;
        }
        limit = longest;
    }
}
