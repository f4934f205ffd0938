/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/comm/topology/random_machine.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/base/random.h"

enum { MAX_BELOW = 5, MAX_DEPTH = 2 };

typedef struct {
    const random_machine_params_t *params;
    FILE *stream;
    xm_random_t random;
    int objects, bus, interfaces, rdma, node;
    int usual_kind, usual_speed; /* of this machine's NICs: half of them have it */
} writer_t;

/* What hangs at a place of a PCI bus. */
typedef enum { NOTHING, GPU, NIC, SWITCH } item_t;

static const item_t mixture[] = {NOTHING, GPU, GPU, NIC, NIC, NIC, SWITCH, SWITCH};

static int below(writer_t *w, int limit)
{
    return (int)(xm_random_below(&w->random, (uint64_t)limit));
}

static void write_gpu(writer_t *w, int bus, int slot)
{
    (void)fprintf(w->stream,
                  "<object type=\"PCIDev\" gp_index=\"%d\" pci_busid=\"0000:%02x:%02x.0\" "
                  "pci_type=\"0302 [10de:2330] [10de:16c1] a1\" pci_link_speed=\"31.5\"/>\n",
                  ++w->objects, bus, slot);
}

static void write_osdev(writer_t *w, const char *name, int number, int type, const char *infos)
{
    (void)fprintf(w->stream,
                  "<object type=\"OSDev\" gp_index=\"%d\" name=\"%s%d\" osdev_type=\"%d\">%s"
                  "</object>\n",
                  ++w->objects, name, number, type, infos);
}

static void write_nic(writer_t *w, int bus, int slot)
{
    static const int speeds[] = {0, 1000, 10000, 25000, 100000, 200000, 400000};
    static const double links[] = {0, 3.9, 7.9, 15.8, 31.5};
    bool equal = w->params->equal;
    int speed = equal ? 100000 : speeds[below(w, 2) == 0 ? below(w, 7) : w->usual_speed];
    int kind = equal ? 0 : below(w, 2) == 0 ? below(w, 5) : w->usual_kind;
    bool down = !equal && below(w, 10) == 0, virtual_function = !equal && below(w, 10) == 0;
    double link = equal ? 31.5 : links[below(w, 5)];
    char infos[256] = "", port[256];

    if (speed > 0) {
        (void)snprintf(infos, sizeof(infos), "<info name=\"CrossmeshLinkMbps\" value=\"%d\"/>",
                       speed);
    }
    (void)fprintf(w->stream,
                  "<object type=\"PCIDev\" gp_index=\"%d\" pci_busid=\"0000:%02x:%02x.0\" "
                  "pci_type=\"%s [15b3:1021] [15b3:0021] 00\" pci_link_speed=\"%g\">\n"
                  "<info name=\"PCIDevice\" value=\"%s\"/>\n",
                  ++w->objects, bus, slot, kind <= 1 ? "0207" : "0200", link,
                  virtual_function ? "ConnectX Virtual Function" : "ConnectX");
    (void)snprintf(port, sizeof(port), "%s<info name=\"Port1State\" value=\"%d\"/>", infos,
                   down ? 1 : 4);
    /* 0 and 1: InfiniBand, 2: RDMA alone, 3: Ethernet without RDMA, 4: no driver. */
    if (kind <= 1 || kind == 3) {
        write_osdev(w, "eth", w->interfaces++, 2, infos);
    }
    if (kind <= 2) {
        write_osdev(w, "mlx5_", w->rdma++, 3, port);
    }
    (void)fputs("</object>\n", w->stream);
}

static void write_bus(writer_t *w, int bus, int depth);

static void write_switch(writer_t *w, int bus, int slot, int depth)
{
    static const double links[] = {0, 7.9, 15.8, 31.5, 63};
    double link = w->params->equal ? 63 : links[below(w, 5)];
    int inner = ++w->bus;

    /* How far its buses reach is not known yet; hwloc trusts the nesting of the elements. */
    (void)fprintf(w->stream,
                  "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"1-1\" depth=\"%d\" "
                  "bridge_pci=\"0000:[%02x-ff]\" pci_busid=\"0000:%02x:%02x.0\" "
                  "pci_type=\"0604 [1000:c010] [0000:0000] b0\" pci_link_speed=\"%g\">\n",
                  ++w->objects, depth, inner, bus, slot, link);
    write_bus(w, inner, depth);
    (void)fputs("</object>\n", w->stream);
}

static void write_bus(writer_t *w, int bus, int depth)
{
    item_t items[MAX_BELOW];
    int count = 1 + below(w, MAX_BELOW);

    for (int i = 0; i < count; ++i) {
        items[i] = mixture[below(w, depth < MAX_DEPTH ? 8 : 6)];
    }
    for (int slot = 0; slot < count; ++slot) {
        switch (items[w->params->reverse ? count - 1 - slot : slot]) {
        case GPU:
            write_gpu(w, bus, slot);
            break;
        case NIC:
            write_nic(w, bus, slot);
            break;
        case SWITCH:
            write_switch(w, bus, slot, depth + 1);
            break;
        default:
            break;
        }
    }
}

static void write_node(writer_t *w)
{
    int node = w->node++, roots = below(w, 4);
    unsigned set = 1U << node;

    (void)fprintf(w->stream,
                  "<object type=\"NUMANode\" gp_index=\"%d\" os_index=\"%d\" cpuset=\"0x%08x\" "
                  "complete_cpuset=\"0x%08x\" nodeset=\"0x%08x\" complete_nodeset=\"0x%08x\" "
                  "local_memory=\"1073741824\"/>\n"
                  "<object type=\"PU\" gp_index=\"%d\" os_index=\"%d\" cpuset=\"0x%08x\" "
                  "complete_cpuset=\"0x%08x\" nodeset=\"0x%08x\" complete_nodeset=\"0x%08x\"/>\n",
                  w->objects + 1, node, set, set, set, set, w->objects + 2, node, set, set, set,
                  set);
    w->objects += 2;
    for (int root = 0; root < roots; ++root) {
        int bus = ++w->bus;

        (void)fprintf(w->stream,
                      "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"0-1\" depth=\"0\" "
                      "bridge_pci=\"0000:[%02x-ff]\">\n",
                      ++w->objects, bus);
        write_bus(w, bus, 0);
        (void)fputs("</object>\n", w->stream);
    }
}

static void open_place(writer_t *w, const char *type, int first, int nodes)
{
    unsigned set = ((1U << nodes) - 1) << first;

    (void)fprintf(w->stream,
                  "<object type=\"%s\" gp_index=\"%d\" os_index=\"%d\" cpuset=\"0x%08x\" "
                  "complete_cpuset=\"0x%08x\" nodeset=\"0x%08x\" complete_nodeset=\"0x%08x\"",
                  type, ++w->objects, first, set, set, set, set);
    if (first == 0 && type[0] == 'M') {
        (void)fprintf(w->stream, " allowed_cpuset=\"0x%08x\" allowed_nodeset=\"0x%08x\"", set, set);
    }
    (void)fputs(type[0] == 'G' ? " kind=\"1001\" subkind=\"0\">\n" : ">\n", w->stream);
}

char *random_machine_xml(const random_machine_params_t *params)
{
    char *text = NULL;
    size_t size;
    writer_t w = {.params = params, .random = {params->seed}};
    int packages, nodes;

    w.stream = open_memstream(&text, &size);
    if (w.stream == NULL) {
        return NULL;
    }
    w.usual_kind = below(&w, 4);
    w.usual_speed = below(&w, 7);
    packages = 1 + below(&w, 2);
    nodes = 1 + below(&w, 2);
    (void)fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n",
                w.stream);
    open_place(&w, "Machine", 0, packages * nodes);
    for (int package = 0; package < packages; ++package) {
        open_place(&w, "Package", package * nodes, nodes);
        for (int node = 0; node < nodes; ++node) {
            if (nodes > 1) {
                open_place(&w, "Group", w.node, 1);
            }
            write_node(&w);
            (void)fputs(nodes > 1 ? "</object>\n" : "", w.stream);
        }
        (void)fputs("</object>\n", w.stream);
    }
    (void)fputs("</object>\n</topology>\n", w.stream);
    (void)fclose(w.stream);
    return text;
}
