/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a choice. Users and scripts read it, and golden tables in tests/fixtures/hwloc
 * hold it in place, so its words and columns change only on purpose. It says for each NIC that
 * is not used why not, because that is what people ask. */
#include <stdlib.h>
#include <string.h>

#include "comm/topology/nic_choice_private.h"

enum { LABEL_SIZE = 32, WAY_SIZE = 160 };

/* These are not the names of xm_topology_path_name(): here they are part of a sentence. */
static const char *const places[] = {"same device",    "same PCIe switch", "same PCIe host bridge",
                                     "same NUMA node", "same package",     "other package"};

static const xm_topology_device_t *device_of(const xm_nic_choice_t *choice, int nic)
{
    return xm_topology_device(choice->topology, XM_DEVICE_NIC, nic);
}

/* A place is a rank, a GPU or a NUMA node, or a rank together with one of the others. */
static char *label_of(const xm_nic_slot_t *slot, char label[LABEL_SIZE])
{
    size_t used = 0;

    label[0] = '\0';
    if (slot->rank >= 0) {
        used = (size_t)snprintf(label, LABEL_SIZE, "rank %d", slot->rank);
    }
    if (slot->gpu >= 0) {
        (void)snprintf(label + used, LABEL_SIZE - used, used > 0 ? " (gpu%d)" : "gpu%d", slot->gpu);
    } else if (slot->node >= 0) {
        (void)snprintf(label + used, LABEL_SIZE - used, used > 0 ? " (node%d)" : "node%d",
                       slot->node);
    } else if (used == 0) {
        (void)snprintf(label, LABEL_SIZE, "any node");
    }
    return label;
}

/* Says where a NIC is as seen from a place. Memory of no certain node has no distance, and
 * neither has a NIC that hangs from the machine as a whole. */
static const char *place_of(const xm_nic_choice_t *choice, const xm_nic_slot_t *slot,
                            const xm_nic_way_t *way)
{
    bool spread = slot->gpu < 0 && slot->node < 0;

    if (way->path >= XM_PATH_PACKAGE && xm_topology_node_count(choice->topology) > 1) {
        if (spread) {
            return "memory of any node";
        }
        if (device_of(choice, way->nic)->numa_node < 0) {
            return "of no certain node";
        }
    }
    return places[way->path];
}

/* Writes "same PCIe switch, 200 Gb/s", and what limits the rate. */
static char *describe(const xm_nic_choice_t *choice, const xm_nic_slot_t *slot,
                      const xm_nic_way_t *way, char text[WAY_SIZE])
{
    size_t used = (size_t)snprintf(text, WAY_SIZE, "%s, ", place_of(choice, slot, way));

    if (way->bandwidth <= 0) {
        (void)snprintf(text + used, WAY_SIZE - used, "speed not told");
        return text;
    }
    used += (size_t)snprintf(text + used, WAY_SIZE - used, "%.5g Gb/s", way->bandwidth * 8e-9);
    if (way->limit == XM_NIC_LIMIT_SLOT && !choice->nics[way->nic].told) {
        (void)snprintf(text + used, WAY_SIZE - used, " (its PCI link; the cable's is not told)");
    } else if (way->limit == XM_NIC_LIMIT_SLOT) {
        (void)snprintf(text + used, WAY_SIZE - used, " (its PCI link; the cable has %.5g)",
                       device_of(choice, way->nic)->link_bandwidth * 8e-9);
    } else if (way->limit == XM_NIC_LIMIT_UPLINK) {
        const xm_topology_uplink_t *uplink = xm_topology_uplink(choice->topology, way->uplink);

        (void)snprintf(text + used, WAY_SIZE - used, " (its share of %s %s)",
                       uplink->card ? "card" : "uplink", uplink->name);
    }
    return text;
}

/* Texts of this table are ASCII, so bytes are columns. */
static int wider(int width, const char *text)
{
    int length = (int)strlen(text);

    return length > width ? length : width;
}

typedef struct {
    const xm_nic_choice_t *choice;
    FILE *stream;
    int label_width, device_width;
} table_t;

/* Columns are as wide as their longest text, which is therefore measured first. */
static void measure(table_t *table)
{
    const xm_nic_choice_t *choice = table->choice;
    xm_nic_slot_t any = {.gpu = -1, .node = -1, .rank = -1};
    char label[LABEL_SIZE];

    table->label_width = wider(0, label_of(&any, label));
    for (int i = 0; i < choice->slot_count; ++i) {
        table->label_width = wider(table->label_width, label_of(&choice->slots[i].slot, label));
    }
    for (int nic = 0; nic < choice->nic_count; ++nic) {
        table->device_width = wider(table->device_width, choice->nics[nic].device);
    }
}

/* Prints one line for each NIC; @p more stands before the second and further ones. */
static void print_ways(const table_t *table, const xm_nic_slot_t *slot, const xm_nic_way_t *ways,
                       int count, const char *more)
{
    char label[LABEL_SIZE], text[WAY_SIZE];

    for (int i = 0; i < count; ++i) {
        (void)fprintf(table->stream, "  %-*s %3s %-*s  %s\n", table->label_width,
                      i == 0 ? label_of(slot, label) : "", i == 0 ? "->" : more,
                      table->device_width, table->choice->nics[ways[i].nic].device,
                      describe(table->choice, slot, &ways[i], text));
    }
}

/* Prints what ranks without a GPU get: one of these each, in turn. */
static void print_memory(const table_t *table, xm_nic_way_t *ways)
{
    const xm_topology_t *topology = table->choice->topology;
    int nodes = xm_topology_node_count(topology);

    (void)fputs("ranks in host memory, in turn:\n", table->stream);
    for (int node = 0; node < nodes + (nodes > 1); ++node) {
        xm_nic_slot_t slot = {.gpu = -1, .node = -1, .rank = -1};

        if (node < nodes) {
            slot.node = xm_topology_node(topology, node)->os_index;
        }
        print_ways(table, &slot, ways, xm_nic_choice_near(table->choice, &slot, ways), "or");
    }
}

static bool is_used(const xm_nic_choice_t *choice, int nic)
{
    for (int i = 0; i < choice->slot_count; ++i) {
        for (int rail = 0; rail < choice->slots[i].count; ++rail) {
            if (choice->slots[i].way[rail].nic == nic) {
                return true;
            }
        }
    }
    /* Without places nobody has chosen, so no NIC is called unused. */
    return choice->slot_count == 0;
}

/* Says why no rank uses a suitable NIC: what they use instead is nearer, or worth more. */
static const char *why_unused(const xm_nic_choice_t *choice, int nic)
{
    bool ranks = choice->slots[0].slot.rank >= 0, nearer = true;

    for (int i = 0; i < choice->slot_count && nearer; ++i) {
        const xm_nic_assignment_t *assigned = &choice->slots[i];
        xm_topology_path_t path = assigned->slot.gpu >= 0
                                      ? xm_topology_path(choice->topology, nic, assigned->slot.gpu)
                                      : xm_topology_path_to_node(choice->topology, XM_DEVICE_NIC,
                                                                 nic, assigned->slot.node);

        nearer = assigned->way[0].path <= path;
    }
    if (nearer) {
        return ranks ? "others are nearer to every rank" : "others are nearer to every GPU";
    }
    return ranks ? "others are nearer to every rank, or bring it more than twice as much"
                 : "others are nearer to every GPU, or bring it more than twice as much";
}

static void print_unused(const table_t *table)
{
    const xm_nic_choice_t *choice = table->choice;
    bool any = false;

    for (int nic = 0; nic < choice->nic_count; ++nic) {
        const xm_nic_suitability_t *suitability = &choice->nics[nic];

        if (suitability->suitable && is_used(choice, nic)) {
            continue;
        }
        /* The heading is printed before the first row only, and not for an empty table. */
        if (!any) {
            (void)fputs("not used:\n", table->stream);
            any = true;
        }
        (void)fprintf(table->stream, "  %-*s  %s\n", table->device_width, suitability->device,
                      suitability->suitable ? why_unused(choice, nic) : suitability->reason);
    }
}

/* Counts the devices that an uplink holds; *nics: how many of them are suitable NICs. */
static int count_held(const xm_nic_choice_t *choice, int uplink, int *nics)
{
    int held = 0;

    *nics = 0;
    for (int nic = 0; nic < choice->nic_count; ++nic) {
        if (xm_topology_uplink_holds(choice->topology, uplink, XM_DEVICE_NIC, nic)) {
            ++held;
            *nics += choice->nics[nic].suitable;
        }
    }
    for (int gpu = 0; gpu < xm_topology_device_count(choice->topology, XM_DEVICE_GPU); ++gpu) {
        held += xm_topology_uplink_holds(choice->topology, uplink, XM_DEVICE_GPU, gpu);
    }
    return held;
}

/* True when the two are nested, which is when they hold a device in common. (Sets of devices
 * below bridges are nested or disjoint.) */
static bool are_nested(const xm_nic_choice_t *choice, int a, int b)
{
    for (int nic = 0; nic < choice->nic_count; ++nic) {
        if (xm_topology_uplink_holds(choice->topology, a, XM_DEVICE_NIC, nic) &&
            xm_topology_uplink_holds(choice->topology, b, XM_DEVICE_NIC, nic)) {
            return true;
        }
    }
    return false;
}

/* True for a link worth showing. Of links that hold the same devices, one after the other, the
 * narrowest counts. */
static bool is_shared(const xm_nic_choice_t *choice, int uplink)
{
    double bandwidth = xm_topology_uplink(choice->topology, uplink)->bandwidth;
    int nics, other_nics, held = count_held(choice, uplink, &nics);

    if (held < 2 || nics == 0) {
        return false;
    }
    for (int other = 0; other < xm_topology_uplink_count(choice->topology); ++other) {
        double other_bandwidth = xm_topology_uplink(choice->topology, other)->bandwidth;

        if (other != uplink && are_nested(choice, uplink, other) &&
            count_held(choice, other, &other_nics) == held &&
            (other_bandwidth < bandwidth || (other_bandwidth <= bandwidth && other < uplink))) {
            return false;
        }
    }
    return true;
}

static void print_uplink(const table_t *table, int uplink)
{
    const xm_nic_choice_t *choice = table->choice;
    const xm_topology_uplink_t *shown = xm_topology_uplink(choice->topology, uplink);

    (void)fprintf(table->stream, "  %-12s  %7.1f Gb/s ", shown->name, shown->bandwidth * 8e-9);
    for (int gpu = 0; gpu < xm_topology_device_count(choice->topology, XM_DEVICE_GPU); ++gpu) {
        if (xm_topology_uplink_holds(choice->topology, uplink, XM_DEVICE_GPU, gpu)) {
            (void)fprintf(table->stream, " gpu%d", gpu);
        }
    }
    for (int nic = 0; nic < choice->nic_count; ++nic) {
        if (xm_topology_uplink_holds(choice->topology, uplink, XM_DEVICE_NIC, nic)) {
            (void)fprintf(table->stream, " %s", choice->nics[nic].device);
        }
    }
    /* A link that is slower than its NICs together is the bottleneck people look for. */
    if (choice->rates_known && choice->below[uplink] > shown->bandwidth) {
        (void)fprintf(table->stream, ": less than its NICs' %.5g Gb/s",
                      choice->below[uplink] * 8e-9);
    }
    (void)fputc('\n', table->stream);
}

static void print_uplinks(const table_t *table)
{
    bool any = false;

    for (int uplink = 0; uplink < xm_topology_uplink_count(table->choice->topology); ++uplink) {
        if (is_shared(table->choice, uplink)) {
            (void)fputs(any ? "" : "shared PCI links:\n", table->stream);
            any = true;
            print_uplink(table, uplink);
        }
    }
}

/* Prints all parts; nothing but memory for the list of ways can fail. */
xm_status_t xm_nic_choice_print(const xm_nic_choice_t *choice, FILE *stream)
{
    table_t table = {.choice = choice, .stream = stream};
    xm_nic_way_t *ways = calloc((size_t)choice->nic_count + 1, sizeof(*ways));
    /* Ranks that have places of their own are listed above; others get the general table. */
    bool memory = choice->suitable > 0;

    XM_NEED_MEMORY(ways, "a table of %d NICs", choice->nic_count);
    measure(&table);
    (void)fprintf(stream, "NIC choice: %d of %d NICs suitable%s%s\n", choice->suitable,
                  choice->nic_count, choice->suitable > 0 ? ", " : "; UCX chooses",
                  choice->suitable > 0 ? xm_fabric_name(choice->fabric) : "");
    for (int i = 0; i < choice->slot_count && choice->suitable > 0; ++i) {
        print_ways(&table, &choice->slots[i].slot, choice->slots[i].way, choice->slots[i].count,
                   "and");
        memory = memory && choice->slots[i].slot.rank < 0;
    }
    if (memory) {
        print_memory(&table, ways);
    }
    print_unused(&table);
    print_uplinks(&table);
    free(ways);
    return XM_OK;
}
