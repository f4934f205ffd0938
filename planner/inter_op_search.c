#include <math.h>
#include <stdlib.h>

#include "planner/inter_op_private.h"

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static int out_port(const ap_inter_op_search_t *search, int state)
{
    const int *ports = search->problem->out_port;

    return search->out_ports == 1 ? 0 : ports != NULL ? ports[state] : state;
}

static int in_port(const ap_inter_op_search_t *search, int state)
{
    const int *ports = search->problem->in_port;

    return search->in_ports == 1 ? 0 : ports != NULL ? ports[state] : state;
}

static const ap_submesh_t *submesh_of(const ap_inter_op_search_t *search, int state)
{
    return &search->problem->submeshes[state / search->problem->config_count];
}

static int devices_of(const ap_submesh_t *submesh)
{
    return submesh->hosts * submesh->devices;
}

static bool fits(const ap_inter_op_search_t *search, const ap_submesh_t *submesh, int devices_left)
{
    int per_host = search->problem->devices_per_host;
    int within_host = (search->total - devices_left) % per_host;

    if (devices_of(submesh) > devices_left) {
        return false;
    }
    return !search->problem->ordered || within_host + submesh->devices <= per_host;
}

static size_t entry_index(const ap_inter_op_search_t *search, int first, int last, int state)
{
    const ap_inter_op_problem_t *problem = search->problem;

    return ((size_t)first * (size_t)problem->layers + (size_t)last) * (size_t)search->states +
           (size_t)state;
}

static double *value_at(const ap_inter_op_search_t *search, int level, int layer, int devices,
                        int port)
{
    size_t rows = (size_t)search->problem->layers + 1, columns = (size_t)search->total + 1;
    size_t row = (search->levels > 0 ? (size_t)level : 0) * rows + (size_t)layer;

    return &search->value[(row * columns + (size_t)devices) * (size_t)search->out_ports +
                          (size_t)port];
}

static double *boundary_at(const ap_inter_op_search_t *search, int layer, int devices, int src,
                           int dst)
{
    size_t offset = search->offsets > 1 ? (size_t)devices : 0;
    size_t row = (size_t)search->boundary_row[layer] * (size_t)search->offsets + offset;

    return &search->boundary[(row * (size_t)search->out_ports + (size_t)src) *
                                 (size_t)search->in_ports +
                             (size_t)dst];
}

static double crossing(const ap_inter_op_search_t *search, int layer, int devices, int src, int dst)
{
    return search->boundary == NULL || layer == 0 ? 0.0
                                                  : *boundary_at(search, layer, devices, src, dst);
}

static double combine(const ap_inter_op_search_t *search, double a, double b)
{
    return search->use_max ? fmax(a, b) : a + b;
}

/* Lets the stages first … last of some states of one submesh, and everything after them, lower what
 * is known of their states. Costs of neighbouring states lie side by side. */
static void try_last(ap_inter_op_search_t *search, int level, int first, int last, int devices_left,
                     const int *states, int count)
{
    const ap_inter_op_problem_t *problem = search->problem;
    const double *cost = &problem->cost[entry_index(search, first, last, 0)];
    const double *after = value_at(search, level - 1, last + 1, devices_left, 0);
    const int32_t *allowed = NULL;
    int needed = search->levels > 0 ? level - 1 : 0;

    if (search->use_memory && problem->max_successors != NULL) {
        allowed = &problem->max_successors[entry_index(search, first, last, 0)];
    }
    for (int i = 0; i < count; ++i) {
        int state = states[i];
        double whole;

        if (!(cost[state] <= search->limit) || (allowed != NULL && allowed[state] < needed)) {
            continue;
        }
        whole = combine(search, cost[state], after[out_port(search, state)]);
        search->first[state] = whole < search->first[state] ? whole : search->first[state];
    }
}

/* Last layers *last … *end - 1 that leave neither layers without devices nor devices without
 * layers,
 * @p left devices being left for the stages after it. */
static void last_layers(const ap_inter_op_search_t *search, int level, int layer, int left,
                        int *last, int *end)
{
    int layers = search->problem->layers;
    int after = search->levels > 0 ? level - 1 : 1; /* stages that need a layer each */

    *last = layer;
    *end = layers - after;
    if (left == 0) {
        *last = layers - 1;
        *end = search->levels == 0 || level == 1 ? layers : layers - 1;
    } else if (search->levels > 0 && (after == 0 || after > left)) {
        *end = layer;
    }
}

/* Least cost of every active state as the next stage, from @p layer on with @p devices left. */
static void price_states(ap_inter_op_search_t *search, int level, int layer, int devices)
{
    int begin = 0, end;

    for (; begin < search->active_count; begin = end) {
        const ap_submesh_t *submesh = submesh_of(search, search->active[begin]);
        int left = devices - devices_of(submesh), last, last_end;

        for (end = begin;
             end < search->active_count && submesh_of(search, search->active[end]) == submesh;
             ++end) {
            search->first[search->active[end]] = INFINITY;
        }
        if (!fits(search, submesh, devices)) {
            continue;
        }
        last_layers(search, level, layer, left, &last, &last_end);
        for (; last < last_end; ++last) {
            try_last(search, level, layer, last, left, search->active + begin, end - begin);
        }
    }
}

/* Fills the scratch arrays for stages that begin at @p layer with @p devices left. */
static void fill_first(ap_inter_op_search_t *search, int level, int layer, int devices)
{
    price_states(search, level, layer, devices);
    for (int port = 0; port < search->in_ports; ++port) {
        search->best_state[port] = -1;
    }
    for (int i = 0; i < search->active_count; ++i) {
        int state = search->active[i], port = in_port(search, state);
        double best = search->first[state];

        if (best < INFINITY &&
            (search->best_state[port] < 0 || best < search->first[search->best_state[port]])) {
            search->best_state[port] = state;
        }
    }
    search->live_count = 0;
    for (int port = 0; port < search->in_ports; ++port) {
        if (search->best_state[port] >= 0) {
            search->live[search->live_count++] = port;
        }
    }
}

/* Least cost over the next stage's state, after a stage with out port @p src. */
static double best_next(const ap_inter_op_search_t *search, int layer, int devices, int src,
                        int *chosen)
{
    double best = INFINITY;

    for (int i = 0; i < search->live_count; ++i) {
        int dst = search->live[i], state = search->best_state[dst];
        double transfer = crossing(search, layer, devices, src, dst);
        double cost = combine(search, transfer, search->first[state]);

        if (transfer <= search->limit && cost < best) {
            best = cost;
            *chosen = state;
        }
    }
    return best;
}

/* Whether a stage of @p size devices can stand where @p devices_left are left for it and the rest.
 */
static bool size_fits(const ap_inter_op_search_t *search, int size, int devices_left)
{
    int per_host = search->problem->devices_per_host;
    ap_submesh_t shape = {1, size};

    if (size > per_host) {
        shape = (ap_submesh_t){size / per_host, per_host};
    }
    return size > 0 && devices_left <= search->total && fits(search, &shape, devices_left);
}

/* Whether a stage with this out port can come right before the last @p devices devices. */
static bool can_precede(const ap_inter_op_search_t *search, int port, int devices)
{
    int size = search->out_size == NULL ? 0 : search->out_size[port];

    return search->out_size == NULL || size_fits(search, size, devices + size);
}

static void fill_level(ap_inter_op_search_t *search, int level)
{
    int layers = search->problem->layers;

    for (int layer = layers - 1; layer >= 0; --layer) {
        for (int devices = layer == 0 ? search->total : 1; devices <= search->total; ++devices) {
            int chosen;

            fill_first(search, level, layer, devices);
            for (int port = 0; port < (layer == 0 ? 1 : search->out_ports); ++port) {
                if (layer == 0 || can_precede(search, port, devices)) {
                    *value_at(search, level, layer, devices, port) =
                        best_next(search, layer, devices, port, &chosen);
                }
            }
        }
    }
}

double ap_inter_op_search_run(ap_inter_op_search_t *search, int *stages)
{
    const ap_inter_op_problem_t *problem = search->problem;
    size_t count = ((size_t)search->levels + 1) * ((size_t)problem->layers + 1) *
                   ((size_t)search->total + 1) * (size_t)search->out_ports;
    double best = INFINITY;

    for (size_t i = 0; i < count; ++i) {
        search->value[i] = INFINITY;
    }
    for (int port = 0; port < search->out_ports; ++port) {
        *value_at(search, 0, problem->layers, 0, port) = 0.0;
    }
    *stages = 0;
    if (search->levels == 0) {
        fill_level(search, 1);
        return *value_at(search, 1, 0, search->total, 0);
    }
    for (int level = 1; level <= search->levels; ++level) {
        fill_level(search, level);
        if (level >= problem->min_stages && *value_at(search, level, 0, search->total, 0) < best) {
            best = *value_at(search, level, 0, search->total, 0);
            *stages = level;
        }
    }
    return best;
}

/* The first last layer that gives the state the cost it was chosen for. */
static int find_last(ap_inter_op_search_t *search, int level, int layer, int devices, int state)
{
    int left = devices - devices_of(submesh_of(search, state)), last = layer - 1;
    double wanted = search->first[state];

    do {
        search->first[state] = INFINITY;
        try_last(search, level, layer, ++last, left, &state, 1);
    } while (search->first[state] > wanted);
    return last;
}

int ap_inter_op_search_trace(ap_inter_op_search_t *search, int level, ap_inter_op_stage_t *stages)
{
    const ap_inter_op_problem_t *problem = search->problem;
    int layer = 0, devices = search->total, port = 0, count = 0;

    while (layer < problem->layers) {
        ap_inter_op_stage_t *stage = &stages[count++];
        int state = 0, last;

        fill_first(search, level, layer, devices);
        (void)best_next(search, layer, devices, port, &state);
        last = find_last(search, level, layer, devices, state);
        *stage = (ap_inter_op_stage_t){
            .first_layer = layer,
            .last_layer = last,
            .submesh = state / problem->config_count,
            .config = state % problem->config_count,
            .first_device = problem->ordered ? search->total - devices : -1,
            .seconds = problem->cost[entry_index(search, layer, last, state)],
            .boundary_seconds = crossing(search, layer, devices, port, in_port(search, state))};
        devices -= devices_of(submesh_of(search, state));
        layer = last + 1;
        port = out_port(search, state);
        --level;
    }
    return count;
}

/* Notes whether memory lets fewer stages follow an entry than could. */
static bool limits_successors(const ap_inter_op_search_t *search, size_t entry, int last, int state)
{
    const int32_t *allowed = search->problem->max_successors;
    int left = search->total - devices_of(submesh_of(search, state));

    return allowed != NULL && allowed[entry] >= 0 &&
           allowed[entry] < min_int(left, search->problem->layers - 1 - last);
}

/* Refuses NaN and negative costs, lists the active states, decides on the dimension s. */
static xm_status_t check_costs(ap_inter_op_search_t *search)
{
    const ap_inter_op_problem_t *problem = search->problem;
    int most = min_int(problem->layers, search->total);
    bool limited = false;

    for (int state = 0; state < search->states; ++state) {
        bool active = false;

        for (int first = 0; first < problem->layers; ++first) {
            for (int last = first; last < problem->layers; ++last) {
                size_t entry = entry_index(search, first, last, state);
                double cost = problem->cost[entry];

                if (!(cost >= 0.0)) {
                    return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                        "layers %d to %d on submesh %d, configuration %d: the cost "
                                        "%g is not a time",
                                        first, last, state / problem->config_count,
                                        state % problem->config_count, cost);
                }
                active = active || cost < INFINITY;
                limited =
                    limited || (cost < INFINITY && limits_successors(search, entry, last, state));
            }
        }
        if (active) {
            search->active[search->active_count++] = state;
        }
    }
    search->counts_stages =
        problem->min_stages > 1 || (problem->max_stages > 0 && problem->max_stages < most);
    if (limited || search->counts_stages) {
        search->levels = problem->max_stages > 0 ? min_int(most, problem->max_stages) : most;
    }
    return XM_OK;
}

/* Number of ports, and the devices of the stages behind each; refuses a port of two submeshes. */
static xm_status_t read_ports(const ap_inter_op_search_t *search, const int *ports, int *count,
                              int *devices)
{
    *count = 0;
    for (int state = 0; state < search->states; ++state) {
        int port = ports != NULL ? ports[state] : state;
        int size = devices_of(submesh_of(search, state));

        if (port < 0 || port >= search->states) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "port %d of state %d is outside 0 to %d",
                                port, state, search->states - 1);
        }
        for (; *count <= port; ++*count) {
            devices[*count] = 0;
        }
        if (devices[port] != 0 && devices[port] != size) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "port %d belongs to stages of %d and of %d devices", port,
                                devices[port], size);
        }
        devices[port] = size;
    }
    return XM_OK;
}

/* Asks the boundary function for every pair of ports that can meet at this place. */
static xm_status_t fill_place(ap_inter_op_search_t *search, int layer, int devices,
                              const int *src_size, const int *dst_size)
{
    const ap_inter_op_problem_t *problem = search->problem;
    ap_inter_op_boundary_t at = {layer, 0, 0, search->offsets > 1 ? search->total - devices : -1};

    for (at.src_port = 0; at.src_port < search->out_ports; ++at.src_port) {
        int size = src_size[at.src_port];

        if (search->offsets > 1 && !size_fits(search, size, devices + size)) {
            continue;
        }
        for (at.dst_port = 0; at.dst_port < search->in_ports; ++at.dst_port) {
            double seconds;

            if (search->offsets > 1 && !size_fits(search, dst_size[at.dst_port], devices)) {
                continue;
            }
            seconds = problem->boundary(problem->boundary_arg, &at);
            if (!(seconds >= 0.0)) {
                return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                    "the boundary before layer %d costs %g: not a time", layer,
                                    seconds);
            }
            *boundary_at(search, layer, devices, at.src_port, at.dst_port) = seconds;
        }
    }
    return XM_OK;
}

/* Gives each kind of boundary a row, in the order of the first layers; writes how many there are.
 */
static xm_status_t number_rows(ap_inter_op_search_t *search, int *rows)
{
    const int *kind = search->problem->boundary_kind;
    int layers = search->problem->layers;

    search->boundary_row = calloc((size_t)layers, sizeof(*search->boundary_row));
    if (search->boundary_row == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d layers", layers);
    }
    *rows = 0;
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
        search->boundary_row[layer] = same < layer ? search->boundary_row[same] : (*rows)++;
    }
    return XM_OK;
}

/* Notes the size of the out ports that some active state has. */
static xm_status_t size_ports(ap_inter_op_search_t *search)
{
    search->out_size = calloc((size_t)search->states, sizeof(*search->out_size));
    if (search->out_size == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d ports", search->states);
    }
    for (int i = 0; i < search->active_count; ++i) {
        int state = search->active[i];

        search->out_size[out_port(search, state)] = devices_of(submesh_of(search, state));
    }
    return XM_OK;
}

static xm_status_t fill_boundaries(ap_inter_op_search_t *search)
{
    int rows = 0, filled = 0;
    size_t states = (size_t)search->states;
    int *sizes = calloc(2 * states, sizeof(*sizes));
    xm_status_t status;

    if (sizes == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %zu ports", 2 * states);
    }
    status = read_ports(search, search->problem->out_port, &search->out_ports, sizes);
    if (status == XM_OK) {
        status = read_ports(search, search->problem->in_port, &search->in_ports, sizes + states);
    }
    if (status == XM_OK) {
        status = size_ports(search);
    }
    if (status == XM_OK) {
        status = number_rows(search, &rows);
    }
    if (status == XM_OK) {
        search->boundary = calloc((size_t)rows * (size_t)search->offsets + 1,
                                  (size_t)search->out_ports * (size_t)search->in_ports *
                                      sizeof(*search->boundary));
        if (search->boundary == NULL) {
            status = xm_error_set(XM_ERR_NO_MEMORY, "out of memory for the boundary table");
        }
    }
    for (int layer = 1; layer < search->problem->layers && status == XM_OK; ++layer) {
        int last = search->offsets > 1 ? search->total : 1;

        if (search->boundary_row[layer] < filled) {
            continue;
        }
        ++filled;
        for (int devices = 1; devices <= last && status == XM_OK; ++devices) {
            status = fill_place(search, layer, devices, sizes, sizes + states);
        }
    }
    free(sizes);
    return status;
}

xm_status_t ap_inter_op_search_open(ap_inter_op_search_t *search,
                                    const ap_inter_op_problem_t *problem)
{
    size_t states, table;
    xm_status_t status;

    search->problem = problem;
    search->states = problem->submesh_count * problem->config_count;
    search->total = problem->hosts * problem->devices_per_host;
    search->use_memory = true;
    search->out_ports = 1;
    search->in_ports = 1;
    search->offsets = problem->ordered ? search->total + 1 : 1;
    states = (size_t)search->states;
    search->active = malloc(states * sizeof(*search->active));
    search->best_state = malloc(states * sizeof(*search->best_state));
    search->live = malloc(states * sizeof(*search->live));
    search->first = malloc(states * sizeof(*search->first));
    if (search->active == NULL || search->best_state == NULL || search->live == NULL ||
        search->first == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %zu states", states);
    }
    status = check_costs(search);
    if (status == XM_OK && problem->boundary != NULL) {
        status = fill_boundaries(search);
    }
    if (status != XM_OK) {
        return status;
    }
    table = ((size_t)search->levels + 1) * ((size_t)problem->layers + 1) *
            ((size_t)search->total + 1) * (size_t)search->out_ports;
    search->value = malloc(table * sizeof(*search->value));
    if (search->value == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for a stage table of %zu entries",
                            table);
    }
    return XM_OK;
}

void ap_inter_op_search_close(ap_inter_op_search_t *search)
{
    free(search->value);
    free(search->boundary);
    free(search->boundary_row);
    free(search->out_size);
    free(search->first);
    free(search->live);
    free(search->best_state);
    free(search->active);
}
