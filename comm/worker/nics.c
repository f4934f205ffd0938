/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing the NICs that a rank uses when nobody names them. A choice by each host alone would
 * be wrong: rail i joins the i-th NICs of both ranks, so all hosts must list networks in the
 * same order, and use only those that all of them reach. So the ranks exchange what each host
 * has of each kind of network, and all compute the same common part; only which NIC of a
 * network a rank takes is its own affair. When anything stands against a choice, UCX chooses,
 * and rank 0's log says why. */
#include "comm/worker/nics.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/topology.h"
#include "comm/transport/ucx.h"

/* KEYS: most networks of a host. PLAIN: as in nic_choice_fault_status.c. */
enum { KEYS = 16, PLAIN = 4 };

_Static_assert((int)XM_NIC_CHOICE_MAX == (int)XM_NICS_MAX, "a rank may use what was chosen for it");

/* How the NICs of a rank are chosen. */
typedef enum { MODE_AUTOMATIC, MODE_EXCEPT, MODE_NAMED, MODE_UCX } chooser_t;

/* The numbers that the ranks exchange, little-endian and of fixed count, so that one allgather
 * carries them. */
enum { PLACE_MODE, PLACE_NODE, PLACE_NUMBERS };
enum { OFFER_NICS, OFFER_RATE, OFFER_KEYS, OFFER_KEY, OFFER_NUMBERS = OFFER_KEY + KEYS };
typedef uint64_t place_t[PLACE_NUMBERS];
typedef uint64_t offer_t[XM_FABRIC_COUNT][OFFER_NUMBERS];

typedef struct {
    const xm_worker_slots_t *slots;
    xm_bootstrap_t *bootstrap;
    double timeout;
    int rank, size;
    const char *unwanted; /* of XM_NICS=^…; NULL: none */
    place_t *places;      /* by rank */
    xm_topology_t *topology;
    xm_nic_slot_t *local; /* of this host's ranks */
    int local_count, own; /* own: this rank among them */
    char *usable;
    xm_nic_networks_t *networks;
} chooser_state_t;

/* Exchanges arrays of numbers; `all` has room for those of all ranks. Bytes are swapped where
 * the machine is not little-endian. */
static xm_status_t exchange(const chooser_state_t *self, uint64_t *own, uint64_t *all, size_t count)
{
    xm_status_t status;

    for (size_t i = 0; i < count; ++i) {
        own[i] = htole64(own[i]);
    }
    status = xm_bootstrap_allgather(self->bootstrap, own, all, count * sizeof(*own), self->timeout);
    for (size_t i = 0; i < count * (size_t)self->size; ++i) {
        all[i] = le64toh(all[i]);
    }
    return status;
}

/* UCX_NET_DEVICES is a user's word to UCX, which a choice of ours would override. */
static chooser_t own_mode(const char *nics)
{
    if (nics[0] != '\0' && nics[0] != '^') {
        return MODE_NAMED;
    }
    if (getenv("UCX_NET_DEVICES") != NULL) {
        return MODE_UCX;
    }
    return nics[0] == '^' ? MODE_EXCEPT : MODE_AUTOMATIC;
}

/* Reads this rank's host; the topology is the one that was exchanged, so that all ranks of a
 * host see the same. */
static xm_status_t read_host(chooser_state_t *self)
{
    const char *nics = xm_config_string(XM_CONFIG_NICS);
    int host = self->slots->host_of[self->rank];

    self->unwanted = nics[0] == '^' ? nics + 1 : NULL;
    self->places = calloc((size_t)self->size, sizeof(*self->places));
    self->local = calloc((size_t)self->size, sizeof(*self->local));
    if (self->places == NULL || self->local == NULL) {
        return XM_NO_MEMORY("the places of %d ranks", self->size);
    }
    return xm_topology_create_from_text(self->slots->topology_xml[host], 0, &self->topology);
}

static xm_status_t exchange_places(chooser_state_t *self)
{
    place_t own = {own_mode(xm_config_string(XM_CONFIG_NICS)),
                   (uint64_t)(xm_topology_own_node(self->topology) + 1)};

    return exchange(self, own, self->places[0], PLACE_NUMBERS);
}

/* Places the ranks of this host: anywhere unless they have told their NUMA node. */
static void slot_local(chooser_state_t *self)
{
    for (int rank = 0; rank < self->size; ++rank) {
        if (self->slots->host_of[rank] == self->slots->host_of[self->rank]) {
            self->own = rank == self->rank ? self->local_count : self->own;
            self->local[self->local_count++] = (xm_nic_slot_t){
                .gpu = -1, .node = (int)self->places[rank][PLACE_NODE] - 1, .rank = rank};
        }
    }
}

/* Chooses NICs for all ranks of this host at once, since they share them. */
static xm_status_t choose(const chooser_state_t *self, unsigned fabrics, const char *apart,
                          xm_nic_choice_t **choice)
{
    xm_nic_choice_params_t params = {0};
    xm_status_t status;

    params.topology = self->topology;
    params.slots = self->local;
    params.slot_count = self->local_count;
    params.usable = self->usable;
    params.unwanted = self->unwanted;
    params.apart = apart;
    params.fabrics = fabrics;
    status = xm_nic_choice_create(&params, choice);
    return status < 0 ? xm_error_prefix(status, "rank %d", self->rank) : XM_OK;
}

/* The key of the network that a suitable NIC is in; 0: in none. */
static uint64_t key_of(const chooser_state_t *self, int nic, xm_fabric_t fabric)
{
    return xm_nic_network_key(self->networks,
                              xm_topology_device(self->topology, XM_DEVICE_NIC, nic), fabric);
}

static bool has_key(const uint64_t *offer, uint64_t key)
{
    for (uint64_t i = 0; i < offer[OFFER_KEYS] && i < KEYS; ++i) {
        if (offer[OFFER_KEY + i] == key) {
            return true;
        }
    }
    return false;
}

static void remove_key(uint64_t *offer, uint64_t index)
{
    --offer[OFFER_KEYS];
    for (uint64_t i = index; i < offer[OFFER_KEYS]; ++i) {
        offer[OFFER_KEY + i] = offer[OFFER_KEY + i + 1];
    }
}

/* Collects what this host has of one kind of network. */
static xm_status_t make_offer(const chooser_state_t *self, xm_fabric_t fabric, uint64_t *offer)
{
    xm_nic_choice_t *choice;

    XM_TRY(choose(self, 1U << fabric, NULL, &choice));
    offer[OFFER_NICS] = (uint64_t)xm_nic_choice_suitable(choice);
    offer[OFFER_RATE] = (uint64_t)xm_nic_choice_rate(choice, fabric == XM_FABRIC_IP);
    for (int nic = 0; nic < xm_topology_device_count(self->topology, XM_DEVICE_NIC); ++nic) {
        uint64_t key = xm_nic_choice_nic(choice, nic)->suitable ? key_of(self, nic, fabric) : 0;

        if (key != 0 && !has_key(offer, key) && offer[OFFER_KEYS] < KEYS) {
            offer[OFFER_KEY + offer[OFFER_KEYS]++] = key;
        }
    }
    xm_nic_choice_destroy(choice);
    return XM_OK;
}

static int compare_keys(const void *a, const void *b)
{
    uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;

    return (first > second) - (first < second);
}

/* Finds what all hosts have of one kind of network: the networks common to all, in an order
 * that is the same everywhere, the smallest rate, and the largest number of NICs. */
static void find_common(const chooser_state_t *self, offer_t *offers, int fabric, uint64_t *common)
{
    memcpy(common, offers[0][fabric], sizeof(offers[0][fabric]));
    common[OFFER_KEYS] = common[OFFER_KEYS] < KEYS ? common[OFFER_KEYS] : KEYS;
    for (int rank = 1; rank < self->size; ++rank) {
        const uint64_t *other = offers[rank][fabric];

        for (uint64_t i = common[OFFER_KEYS]; i-- > 0;) {
            if (!has_key(other, common[OFFER_KEY + i])) {
                remove_key(common, i);
            }
        }
        common[OFFER_NICS] =
            other[OFFER_NICS] > common[OFFER_NICS] ? other[OFFER_NICS] : common[OFFER_NICS];
        common[OFFER_RATE] =
            other[OFFER_RATE] < common[OFFER_RATE] ? other[OFFER_RATE] : common[OFFER_RATE];
    }
    qsort(common + OFFER_KEY, common[OFFER_KEYS], sizeof(*common), compare_keys);
}

/* The kind of network to be used, or XM_FABRIC_COUNT for none. All ranks compute it from the
 * same numbers, so they agree without another exchange. Plain IP must be four times as fast as
 * RDMA to win. */
static xm_fabric_t best_common(const chooser_state_t *self, offer_t *offers, uint64_t *best)
{
    xm_fabric_t found = XM_FABRIC_COUNT;

    for (int fabric = 0; fabric < XM_FABRIC_COUNT; ++fabric) {
        uint64_t common[OFFER_NUMBERS], factor = fabric == XM_FABRIC_IP ? PLAIN : 1;

        find_common(self, offers, fabric, common);
        if (common[OFFER_KEYS] == 0) {
            continue;
        }
        if (found == XM_FABRIC_COUNT ||
            (best[OFFER_RATE] > 0 && common[OFFER_RATE] / factor > best[OFFER_RATE])) {
            memcpy(best, common, sizeof(common));
            found = (xm_fabric_t)fabric;
        }
    }
    return found;
}

/* An allocation failure here is local, so the rank leaves and the others run into the
 * bootstrap's fault. */
static xm_status_t agree(chooser_state_t *self, xm_fabric_t *fabric, uint64_t *common)
{
    offer_t own = {{0}}, *all = calloc((size_t)self->size, sizeof(*all));
    xm_status_t status = all != NULL ? XM_OK : XM_NO_MEMORY("the NICs of %d ranks", self->size);

    for (int kind = 0; kind < XM_FABRIC_COUNT && status == XM_OK; ++kind) {
        status = make_offer(self, (xm_fabric_t)kind, own[kind]);
    }
    XM_THEN(status, exchange(self, own[0], all[0][0], sizeof(own) / sizeof(uint64_t)));
    if (status == XM_OK) {
        *fabric = best_common(self, all, common);
    }
    free(all);
    return status;
}

/* Lists the NICs that are in no common network, with commas between. The caller frees the list. */
static char *list_apart(const chooser_state_t *self, const xm_nic_choice_t *choice,
                        xm_fabric_t fabric, const uint64_t *common)
{
    char *list = NULL;
    size_t size;
    FILE *stream = open_memstream(&list, &size);

    if (stream == NULL) {
        return NULL;
    }
    for (int nic = 0; nic < xm_topology_device_count(self->topology, XM_DEVICE_NIC); ++nic) {
        const xm_nic_suitability_t *fault_status = xm_nic_choice_nic(choice, nic);

        if (fault_status->suitable && !has_key(common, key_of(self, nic, fabric))) {
            (void)fprintf(stream, "%s%s", ftell(stream) > 0 ? "," : "", fault_status->device);
        }
    }
    return fclose(stream) == 0 ? list : NULL;
}

/* Finds a NIC of this host in a network: the rank's own where it has one there, else one of the
 * others, ranks in turn, so that they do not all take the first. */
static int nic_in(const chooser_state_t *self, const xm_nic_choice_t *choice, uint64_t key,
                  xm_fabric_t fabric)
{
    const xm_nic_way_t *ways;
    int own = xm_nic_choice_slot(choice, self->own, &ways), count = 0, turn;
    int nics = xm_topology_device_count(self->topology, XM_DEVICE_NIC);

    for (int i = 0; i < own; ++i) {
        if (key_of(self, ways[i].nic, fabric) == key) {
            return ways[i].nic;
        }
    }
    for (int nic = 0; nic < nics; ++nic) {
        count += xm_nic_choice_nic(choice, nic)->suitable && key_of(self, nic, fabric) == key;
    }
    turn = count > 0 ? self->own % count : 0;
    for (int nic = 0; nic < nics; ++nic) {
        if (xm_nic_choice_nic(choice, nic)->suitable && key_of(self, nic, fabric) == key &&
            turn-- == 0) {
            return nic;
        }
    }
    return -1;
}

/* Rates are written in bit/s, as XM_NICS wants them; absurd ones are left out. */
static void append(char text[XM_WORKER_NICS_SIZE], const xm_nic_choice_t *choice, int nic,
                   double bandwidth)
{
    const char *device = xm_nic_choice_nic(choice, nic)->device;

    if (bandwidth > 0 && bandwidth * 8 <= (double)XM_NICS_MAX_RATE) {
        xm_text_list_add(text, XM_WORKER_NICS_SIZE, ",", "%s=%.0f", device, bandwidth * 8);
    } else {
        xm_text_list_add(text, XM_WORKER_NICS_SIZE, ",", "%s", device);
    }
}

/* Lists this rank's rails: rail i of any two ranks joins NICs of one network. In a single RDMA
 * network any two NICs reach each other, so each rank takes those nearest to it; over several
 * networks, or IP, there is one NIC for each network in the agreed order. */
static void list_rails(const chooser_state_t *self, const xm_nic_choice_t *choice,
                       xm_fabric_t fabric, const uint64_t *common, char text[XM_WORKER_NICS_SIZE])
{
    const xm_nic_way_t *ways;
    int own = xm_nic_choice_slot(choice, self->own, &ways);

    if (common[OFFER_KEYS] == 1 && fabric != XM_FABRIC_IP) {
        for (int i = 0; i < own; ++i) {
            /* NICs may have become suitable, because others were left out, that are in no
             * common network. */
            if (key_of(self, ways[i].nic, fabric) == common[OFFER_KEY]) {
                append(text, choice, ways[i].nic, ways[i].bandwidth);
            }
        }
        if (text[0] != '\0') {
            return;
        }
    }
    for (uint64_t i = 0; i < common[OFFER_KEYS] && i < XM_NICS_MAX; ++i) {
        int nic = nic_in(self, choice, common[OFFER_KEY + i], fabric);

        if (nic >= 0) {
            append(text, choice, nic, xm_nic_choice_nic(choice, nic)->rate);
        }
    }
}

static void log_line(const char *line, size_t length)
{
    xm_log_info("%.*s", (int)length, line);
}

/* Logs the table of rank 0's host once per job, line by line. */
static xm_status_t log_choice(const chooser_state_t *self, const xm_nic_choice_t *choice,
                              const char *outcome)
{
    char *table = NULL;
    size_t size;
    FILE *stream;
    xm_status_t status;

    if (self->rank != 0 || !xm_log_enabled(XM_LOG_INFO)) {
        return XM_OK;
    }
    stream = open_memstream(&table, &size);
    XM_NEED_MEMORY(stream, "a table of NICs");
    status = xm_nic_choice_print(choice, stream);
    (void)fprintf(stream, "NICs of rank 0: %s\n", outcome);
    (void)fclose(stream);
    for (const char *line = table; status == XM_OK && *line != '\0';) {
        size_t length = strcspn(line, "\n");

        log_line(line, length);
        line += length + (line[length] == '\n');
    }
    free(table);
    return status;
}

static bool spans_machines(const chooser_state_t *self)
{
    for (int rank = 0; rank < self->size; ++rank) {
        if (self->slots->machine_of[rank] != self->slots->machine_of[0]) {
            return true;
        }
    }
    return false;
}

/* Counts the ranks with one of the modes. */
static int count_mode(const chooser_state_t *self, chooser_t mode)
{
    int count = 0;

    for (int rank = 0; rank < self->size; ++rank) {
        count += self->places[rank][PLACE_MODE] == mode;
    }
    return count;
}

/* There is no choice, but whoever reads the log still wants to see the machine. */
static xm_status_t log_only(const chooser_state_t *self, const char *outcome)
{
    xm_nic_choice_t *choice;
    xm_status_t status;

    if (self->rank != 0 || !xm_log_enabled(XM_LOG_INFO)) {
        return XM_OK;
    }
    if (choose(self, 0, NULL, &choice) < 0) {
        xm_log_info("%s", xm_last_error()); /* of NICs that do not matter in this job */
        return XM_OK;
    }
    status = log_choice(self, choice, outcome);
    xm_nic_choice_destroy(choice);
    return status;
}

/* Leaves the choice to UCX. UCX does not know what XM_NICS=^… leaves out, so for such a rank
 * this is a failure. */
static xm_status_t leave_to_ucx(const chooser_state_t *self, const char *reason)
{
    char outcome[256];

    if (self->unwanted != NULL) {
        return xm_error_set(XM_ERR_UNREACHABLE, "rank %d: XM_NICS=^%s cannot be kept: %s",
                            self->rank, self->unwanted, reason);
    }
    (void)snprintf(outcome, sizeof(outcome), "UCX chooses: %s", reason);
    return log_only(self, outcome);
}

/* Lists this rank's NICs of the kind that was agreed on. The choice is made twice: the first
 * finds the NICs in no common network, the second does without them. */
static xm_status_t list_agreed(const chooser_state_t *self, xm_fabric_t fabric,
                               const uint64_t *common, char text[XM_WORKER_NICS_SIZE])
{
    xm_nic_choice_t *choice;
    char *apart;
    xm_status_t status;

    XM_TRY(choose(self, 1U << fabric, NULL, &choice));
    apart = list_apart(self, choice, fabric, common);
    xm_nic_choice_destroy(choice);
    XM_NEED_MEMORY(apart, "names of NICs");
    status = choose(self, 1U << fabric, apart, &choice);
    free(apart);
    if (status == XM_OK) {
        list_rails(self, choice, fabric, common, text);
        status = log_choice(self, choice, text);
        xm_nic_choice_destroy(choice);
    }
    return status;
}

/* Each step is collective, so a rank that fails does so for all. */
static xm_status_t choose_together(chooser_state_t *self, char text[XM_WORKER_NICS_SIZE])
{
    uint64_t common[OFFER_NUMBERS] = {0};
    xm_fabric_t fabric = XM_FABRIC_COUNT;

    XM_TRY(xm_ucx_rail_devices(&self->usable));
    XM_TRY(xm_nic_networks_create("/sys", &self->networks));
    XM_TRY(agree(self, &fabric, common));
    if (fabric == XM_FABRIC_COUNT) {
        return leave_to_ucx(self, "no network is known to reach all hosts");
    }
    /* There is nothing to gain if no NIC has to be avoided and no host has several. */
    if (common[OFFER_NICS] <= 1 && count_mode(self, MODE_EXCEPT) == 0) {
        return leave_to_ucx(self, "no host has more than one suitable NIC");
    }
    return list_agreed(self, fabric, common, text);
}

/* Decides whether there is anything to choose. */
static xm_status_t choose_or_not(chooser_state_t *self, char text[XM_WORKER_NICS_SIZE])
{
    bool spans = spans_machines(self);
    xm_status_t status = XM_OK;

    /* On one machine NICs do not matter, so nothing is spent on them. */
    if (!spans && (self->rank != 0 || !xm_log_enabled(XM_LOG_INFO))) {
        return XM_OK;
    }
    status = read_host(self);
    if (status == XM_OK && spans) {
        status = exchange_places(self);
    }
    if (status < 0) {
        return status;
    }
    slot_local(self);
    if (!spans) {
        return log_only(self, "none needed, all ranks are on one machine");
    }
    if (own_mode(xm_config_string(XM_CONFIG_NICS)) == MODE_NAMED) {
        return log_only(self, xm_config_string(XM_CONFIG_NICS));
    }
    if (count_mode(self, MODE_NAMED) + count_mode(self, MODE_UCX) > 0) {
        return leave_to_ucx(self, "a rank has set UCX_NET_DEVICES, or XM_NICS to names");
    }
    return choose_together(self, text);
}

/* Collective if the job spans machines. Everything is freed in one place. */
xm_status_t xm_worker_nics_choose(const xm_worker_slots_t *slots, xm_bootstrap_t *bootstrap,
                                  double timeout, char text[XM_WORKER_NICS_SIZE])
{
    chooser_state_t self = {.slots = slots,
                            .bootstrap = bootstrap,
                            .timeout = timeout,
                            .rank = xm_bootstrap_rank(bootstrap),
                            .size = xm_bootstrap_size(bootstrap)};
    xm_status_t status;

    text[0] = '\0';
    status = choose_or_not(&self, text);
    xm_nic_networks_destroy(self.networks);
    free(self.usable);
    free(self.local);
    free(self.places);
    xm_topology_destroy(self.topology);
    return status;
}
