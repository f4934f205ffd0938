/* SPDX-License-Identifier: Apache-2.0 */
/* Which NICs of a host are suitable at all. A rejected NIC keeps its first reason, which is
 * printed, so tests go from the device itself to comparisons with others. In doubt a NIC is
 * kept: leaving out the only one that works would be worse than a slow rail. All NICs that
 * remain are of one kind of network, since rails of different kinds do not join. */
#include <string.h>

#include "comm/topology/nic_choice_private.h"

/* MANAGEMENT: below one in so many of the fastest a rail gains nothing. PLAIN: IP must carry so
 * many times what RDMA carries to be preferred, because the CPU copies for it. */
enum { MANAGEMENT = 8, PLAIN = 4 };

static const char *const fabric_names[] = {"InfiniBand", "RDMA", "IP"};

const char *xm_fabric_name(xm_fabric_t fabric)
{
    return fabric_names[fabric];
}

static const xm_topology_device_t *device_of(const xm_nic_choice_t *choice, int nic)
{
    return xm_topology_device(choice->topology, XM_DEVICE_NIC, nic);
}

static bool has_name(const xm_topology_device_t *nic)
{
    return nic->interface[0] != '\0' || nic->rdma_name[0] != '\0';
}

/* True when a list holds the word as a whole; @p separator stands between its entries. */
static bool is_listed(const char *list, char separator, const char *word)
{
    size_t length = strlen(word);

    for (const char *at = list; length > 0 && (at = strstr(at, word)) != NULL; at += length) {
        if ((at == list || at[-1] == separator) &&
            (at[length] == separator || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

static void rdma_device(const xm_topology_device_t *nic, char device[XM_NIC_DEVICE_SIZE])
{
    device[0] = '\0';
    if (nic->rdma_name[0] != '\0') {
        (void)snprintf(device, XM_NIC_DEVICE_SIZE, "%s:%d", nic->rdma_name, nic->rdma_port);
    }
}

/* True when a list with commas has one of a NIC's names: interface, RDMA device with or without
 * port, or PCI address. */
static bool names_device(const char *list, const xm_topology_device_t *nic)
{
    char rdma[XM_NIC_DEVICE_SIZE];

    rdma_device(nic, rdma);
    return list != NULL &&
           (is_listed(list, ',', nic->interface) || is_listed(list, ',', nic->rdma_name) ||
            is_listed(list, ',', rdma) || is_listed(list, ',', nic->pci));
}

/* The first reason stays. */
static void reject(xm_nic_choice_t *choice, int nic, const char *reason)
{
    xm_nic_suitability_t *suitability = &choice->nics[nic];

    if (suitability->suitable) {
        suitability->suitable = false;
        (void)snprintf(suitability->reason, sizeof(suitability->reason), "%s", reason);
    }
}

/* Finds by which name UCX takes a NIC, and what kind of network that is. RDMA is preferred.
 * Returns false when UCX does not take it. */
static bool name_device(const xm_topology_device_t *nic, const char *usable,
                        xm_nic_suitability_t *suitability)
{
    rdma_device(nic, suitability->device);
    if (suitability->device[0] != '\0' &&
        (usable == NULL || is_listed(usable, ' ', suitability->device))) {
        suitability->fabric = nic->infiniband ? XM_FABRIC_INFINIBAND : XM_FABRIC_RDMA;
        return true;
    }
    suitability->fabric = XM_FABRIC_IP;
    if (nic->interface[0] != '\0') {
        (void)snprintf(suitability->device, sizeof(suitability->device), "%s", nic->interface);
        return usable == NULL || is_listed(usable, ' ', suitability->device);
    }
    if (!has_name(nic)) {
        (void)snprintf(suitability->device, sizeof(suitability->device), "%s", nic->name);
        suitability->fabric = nic->infiniband ? XM_FABRIC_INFINIBAND : XM_FABRIC_IP;
    }
    return usable == NULL;
}

/* A measured rate outranks what drivers tell; a PCI slot may be slower than the cable. Where the
 * cable's speed is not told the slot's is the most that the NIC can carry. */
static void rate_nic(const xm_topology_device_t *nic, double measured,
                     xm_nic_suitability_t *suitability)
{
    double slot = nic->pci_bandwidth, cable = nic->link_bandwidth;

    suitability->told = measured > 0 || cable > 0;
    if (measured > 0) {
        suitability->rate = measured;
    } else {
        suitability->rate = slot > 0 && (cable <= 0 || slot < cable) ? slot : cable;
    }
}

/* Judges a NIC by its own description. */
static void evaluate_alone(xm_nic_choice_t *choice, int nic, const xm_nic_choice_params_t *params,
                           bool names_given)
{
    const xm_topology_device_t *device = device_of(choice, nic);
    xm_nic_suitability_t *suitability = &choice->nics[nic];
    char reason[XM_NIC_REASON_SIZE];
    bool usable;

    *suitability = (xm_nic_suitability_t){.suitable = true};
    rate_nic(device, params->rates != NULL ? params->rates[nic] : 0, suitability);
    usable = name_device(device, params->usable, suitability);
    if (names_device(params->unwanted, device)) {
        reject(choice, nic, "XM_NICS leaves it out");
    }
    if (names_given && !has_name(device)) {
        reject(choice, nic, "no driver: neither an interface nor an RDMA device");
    }
    if (device->down) {
        reject(choice, nic, "no link");
    }
    if (device->physical_function[0] != '\0') {
        (void)snprintf(reason, sizeof(reason), "virtual function of %s, which is here too",
                       device->physical_function);
        reject(choice, nic, reason);
    }
    if (!usable) {
        reject(choice, nic, "UCX cannot use it");
    }
    if (params->fabrics != 0 && (params->fabrics & 1U << suitability->fabric) == 0) {
        (void)snprintf(reason, sizeof(reason), "%s, which not every host has",
                       xm_fabric_name(suitability->fabric));
        reject(choice, nic, reason);
    }
    if (names_device(params->apart, device)) {
        reject(choice, nic, "in a network that not every host has");
    }
}

/* Wireless NICs are used only where there is nothing else. */
static void reject_wireless(xm_nic_choice_t *choice)
{
    bool wired = false;

    for (int nic = 0; nic < choice->nic_count; ++nic) {
        wired = wired || (choice->nics[nic].suitable && !device_of(choice, nic)->wireless);
    }
    for (int nic = 0; wired && nic < choice->nic_count; ++nic) {
        if (device_of(choice, nic)->wireless) {
            reject(choice, nic, "wireless, and others are not");
        }
    }
}

/* An RDMA device is about as fast as its slot; of a plain interface the slot says little. */
static bool is_reliable(const xm_nic_suitability_t *suitability)
{
    return suitability->told || suitability->fabric != XM_FABRIC_IP;
}

/* @p reliable: only rates that may put another NIC aside count. */
static double fastest_suitable(const xm_nic_choice_t *choice, bool reliable)
{
    double fastest = 0;

    for (int nic = 0; nic < choice->nic_count; ++nic) {
        const xm_nic_suitability_t *suitability = &choice->nics[nic];

        if (suitability->suitable && suitability->rate > fastest &&
            (!reliable || is_reliable(suitability))) {
            fastest = suitability->rate;
        }
    }
    return fastest;
}

/* A slow NIC beside fast ones is there for management, and as a rail it would be the one that
 * others wait for. */
static void reject_slow(xm_nic_choice_t *choice)
{
    double fastest = fastest_suitable(choice, true);

    for (int nic = 0; nic < choice->nic_count; ++nic) {
        const xm_nic_suitability_t *suitability = &choice->nics[nic];
        char reason[XM_NIC_REASON_SIZE];

        if (suitability->rate > 0 && suitability->rate * MANAGEMENT < fastest) {
            (void)snprintf(reason, sizeof(reason),
                           "management: %.5g Gb/s, less than 1/%d of the fastest (%.5g Gb/s)",
                           suitability->rate * 8e-9, (int)MANAGEMENT, fastest * 8e-9);
            reject(choice, nic, reason);
        }
    }
}

/* Sums what the NICs of one kind carry together; 0: one of them is not known well enough. *count:
 * how many. */
static double rate_together(const xm_nic_choice_t *choice, xm_fabric_t fabric, int *count)
{
    double sum = 0;
    bool known = true;

    *count = 0;
    for (int nic = 0; nic < choice->nic_count; ++nic) {
        const xm_nic_suitability_t *suitability = &choice->nics[nic];

        if (suitability->suitable && suitability->fabric == fabric) {
            ++*count;
            sum += suitability->rate;
            known = known && suitability->rate > 0 && is_reliable(suitability);
        }
    }
    return known ? sum : 0;
}

/* Keeps the kind of network that carries most, or the better kind where that cannot be told. */
static void keep_one_fabric(xm_nic_choice_t *choice)
{
    double best = 0;
    int found = 0;

    for (int fabric = 0; fabric < XM_FABRIC_COUNT; ++fabric) {
        int count;
        double rate = rate_together(choice, (xm_fabric_t)fabric, &count);

        if (count == 0) {
            continue;
        }
        if (found == 0 ||
            (best > 0 && rate > best * (fabric == XM_FABRIC_IP ? (double)PLAIN : 1.0))) {
            choice->fabric = (xm_fabric_t)fabric;
            best = rate;
            found = count;
        }
    }
    for (int nic = 0; nic < choice->nic_count; ++nic) {
        const xm_nic_suitability_t *suitability = &choice->nics[nic];
        char reason[XM_NIC_REASON_SIZE];

        if (suitability->suitable && suitability->fabric != choice->fabric) {
            (void)snprintf(reason, sizeof(reason), "%s, and %s is used",
                           xm_fabric_name(suitability->fabric), xm_fabric_name(choice->fabric));
            reject(choice, nic, reason);
        }
    }
}

static bool is_behind_switch_of(const xm_nic_choice_t *choice, int nic, int gpu)
{
    return choice->nics[nic].suitable &&
           xm_topology_path(choice->topology, nic, gpu) <= XM_PATH_SWITCH;
}

/* If every GPU has a NIC behind its own switch, those NICs are there to compute; one that hangs
 * apart from all GPUs is there for something else (storage, users). */
static void reject_apart(xm_nic_choice_t *choice)
{
    int gpus = xm_topology_device_count(choice->topology, XM_DEVICE_GPU);

    for (int gpu = 0; gpu < gpus; ++gpu) {
        bool has_one = false;

        for (int nic = 0; nic < choice->nic_count; ++nic) {
            has_one = has_one || is_behind_switch_of(choice, nic, gpu);
        }
        if (!has_one) {
            return;
        }
    }
    for (int nic = 0; nic < choice->nic_count && gpus > 0; ++nic) {
        bool apart = true;

        for (int gpu = 0; gpu < gpus; ++gpu) {
            apart = apart && !is_behind_switch_of(choice, nic, gpu);
        }
        if (apart) {
            reject(choice, nic, "apart from the GPUs, which all have NICs behind their switches");
        }
    }
}

/* Refuses a name that no NIC has: a typing error would be noticed late. */
static xm_status_t check_unwanted(const xm_nic_choice_t *choice, const char *unwanted)
{
    for (const char *at = unwanted; at != NULL; at = *at == ',' ? at + 1 : NULL) {
        char word[XM_NIC_DEVICE_SIZE];
        size_t length = strcspn(at, ",");
        bool found = false;

        (void)snprintf(word, sizeof(word), "%.*s", (int)length, at);
        for (int nic = 0; nic < choice->nic_count && !found; ++nic) {
            found = names_device(word, device_of(choice, nic));
        }
        if (!found) {
            return XM_NOT_FOUND("XM_NICS: no NIC '%.*s' to leave out", (int)length, at);
        }
        at += length;
    }
    return XM_OK;
}

/* Judges all NICs. The order matters: each test compares only those that have passed the ones
 * before. */
xm_status_t xm_nic_choice_evaluate(xm_nic_choice_t *choice, const xm_nic_choice_params_t *params)
{
    bool names_given = false;

    for (int nic = 0; nic < choice->nic_count; ++nic) {
        names_given = names_given || has_name(device_of(choice, nic));
    }
    for (int nic = 0; nic < choice->nic_count; ++nic) {
        evaluate_alone(choice, nic, params, names_given);
    }
    reject_wireless(choice);
    reject_slow(choice);
    keep_one_fabric(choice);
    reject_apart(choice);
    for (int nic = 0; nic < choice->nic_count; ++nic) {
        choice->suitable += choice->nics[nic].suitable;
    }
    choice->fastest = fastest_suitable(choice, false);
    choice->rates_known = choice->fastest > 0;
    choice->fastest = choice->rates_known ? choice->fastest : 1;
    return check_unwanted(choice, params->unwanted);
}
