/* SPDX-License-Identifier: Apache-2.0 */
/* Any text: hwloc and we refuse it with a sentence, or make a topology of which NICs can be chosen
 * and which survives writing and reading. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/topology/nic_choice.h"
#include "comm/topology/topology.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static FILE *nowhere;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    nowhere = fopen("/dev/null", "we");
    return setenv("HWLOC_HIDE_ERRORS", "2", 1);
}

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* One slot at every GPU, and one anywhere. */
static void choose(const xm_topology_t *topology)
{
    enum { SLOTS = 8 };
    xm_nic_slot_t slots[SLOTS];
    int gpus = xm_topology_device_count(topology, XM_DEVICE_GPU), count = 0;
    xm_nic_choice_params_t params = {0};
    xm_nic_choice_t *choice = NULL;

    for (int g = 0; g < gpus && count < SLOTS - 1; ++g) {
        slots[count++] = (xm_nic_slot_t){.gpu = g, .node = -1, .rank = -1};
    }
    slots[count++] = (xm_nic_slot_t){.gpu = -1, .node = -1, .rank = 0};
    params.topology = topology;
    params.slots = slots;
    params.slot_count = count;
    expect(xm_nic_choice_create(&params, &choice) == XM_OK);
    for (int s = 0; s < count; ++s) {
        const xm_nic_way_t *ways;
        int rails = xm_nic_choice_slot(choice, s, &ways);

        expect(rails >= 0 && rails <= XM_NIC_CHOICE_MAX);
        expect(rails > 0 || xm_nic_choice_suitable(choice) == 0);
    }
    expect(xm_nic_choice_print(choice, nowhere) == XM_OK);
    xm_nic_choice_destroy(choice);
}

static void look(const xm_topology_t *topology)
{
    int nics = xm_topology_device_count(topology, XM_DEVICE_NIC);
    int gpus = xm_topology_device_count(topology, XM_DEVICE_GPU);

    for (int n = 0; n < nics; ++n) {
        const xm_topology_device_t *nic = xm_topology_device(topology, XM_DEVICE_NIC, n);

        expect(nic->name[0] != '\0' && nic->link_bandwidth >= 0 && nic->pci_bandwidth >= 0);
        for (int g = 0; g < gpus; ++g) {
            expect(xm_topology_path(topology, n, g) <= XM_PATH_MACHINE);
        }
    }
    xm_topology_print(topology, nowhere);
    choose(topology);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = strndup((const char *)data, size), *xml = NULL;
    unsigned flags = size % 2 == 0 ? 0 : XM_TOPOLOGY_VIRTUAL_NICS;
    xm_topology_t *topology = NULL, *again = NULL;

    expect(text != NULL);
    if (xm_topology_create_from_text(text, flags, &topology) < 0) {
        expect(topology == NULL && xm_last_error()[0] != '\0');
        free(text);
        return 0;
    }
    look(topology);
    if (xm_topology_export_xml(topology, &xml) == XM_OK) {
        expect(xm_topology_create_from_text(xml, flags, &again) == XM_OK);
        expect(xm_topology_device_count(again, XM_DEVICE_NIC) ==
               xm_topology_device_count(topology, XM_DEVICE_NIC));
    }
    xm_topology_destroy(again);
    xm_topology_destroy(topology);
    free(xml);
    free(text);
    return 0;
}
