/* SPDX-License-Identifier: Apache-2.0 */
/* Finding RDMA ports that can be used, and saying why others cannot. A port is usable if it is
 * active and can be addressed: by a LID on InfiniBand, by a GID of RoCE version 2 on Ethernet.
 * The GID is chosen by its kind and never by a fixed index, because tables are ordered by when
 * addresses were configured. What a user names must work, or the job ends with the reason; what
 * is found automatically is used if it works. */
#include "comm/transport/verbs/device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

enum { GIDS_MAX = 512, LIST_SIZE = 512, WHY_SIZE = 160 };

/* The longest RDMA WRITE that is asked for, whatever a port allows: others share the wire. */
enum { LONGEST_WRITE = 1 << 30 };

/* IPv4 addresses stand in GIDs as IPv6 ones that begin with ::ffff. */
static bool is_ipv4(const union ibv_gid *gid)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    return memcmp(gid->raw, mapped, sizeof(mapped)) == 0;
}

/* Addresses of the loopback interface and self-assigned ones (169.254) exist on every host and
 * lead nowhere. */
static bool stays_here(const union ibv_gid *gid)
{
    return gid->raw[12] == 127 || (gid->raw[12] == 169 && gid->raw[13] == 254);
}

/* Picks one GID of each kind. The first is taken, except that an IPv4 address which leads
 * somewhere replaces one that does not. */
void xm_verbs_choose_gids(const struct ibv_gid_entry *entries, int count,
                          int chosen[XM_VERBS_GID_KINDS])
{
    for (int kind = 0; kind < XM_VERBS_GID_KINDS; ++kind) {
        chosen[kind] = -1;
    }
    for (int i = 0; i < count; ++i) {
        const union ibv_gid *gid = &entries[i].gid;
        int *place = &chosen[XM_VERBS_GID_IPV6];

        /* Other entries are of RoCE version 1, whose packets no router passes. */
        if (entries[i].gid_type != IBV_GID_TYPE_ROCE_V2) {
            continue;
        }
        if (is_ipv4(gid)) {
            place = &chosen[XM_VERBS_GID_IPV4];
            if (*place >= 0 && stays_here(&entries[*place].gid) && !stays_here(gid)) {
                *place = -1;
            }
        } else if (gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80) {
            /* Link-local addresses (fe80::/10) come last: they work inside one segment only. */
            place = &chosen[XM_VERBS_GID_LINK_LOCAL];
        }
        *place = *place < 0 ? i : *place;
    }
}

/* Reads a port's GIDs. A device's table holds those of all its ports, so it is filtered first.
 * The number of GIDs in the sentence helps to tell a port without addresses from one of RoCE
 * version 1. */
static bool take_gids(xm_verbs_port_t *port, char why[WHY_SIZE])
{
    struct ibv_gid_entry *entries = calloc(GIDS_MAX, sizeof(*entries));
    struct ibv_gid_entry *own = calloc(GIDS_MAX, sizeof(*own));
    int chosen[XM_VERBS_GID_KINDS], count = 0;
    /* The table of the whole device is asked at once, which needs one call of the driver
     * instead of one for each entry. */
    ssize_t all = entries != NULL && own != NULL
                      ? ibv_query_gid_table(port->context, entries, GIDS_MAX, 0)
                      : -ENOMEM;

    for (ssize_t i = 0; i < all; ++i) {
        if (entries[i].port_num == port->number) {
            own[count++] = entries[i];
        }
    }
    xm_verbs_choose_gids(own, count, chosen);
    for (int kind = 0; kind < XM_VERBS_GID_KINDS; ++kind) {
        port->gid_index[kind] = chosen[kind] < 0 ? -1 : (int)own[chosen[kind]].gid_index;
        if (chosen[kind] >= 0) {
            port->offer.gids |= 1u << kind;
            memcpy(port->offer.gid[kind], own[chosen[kind]].gid.raw, XM_VERBS_GID_SIZE);
        }
    }
    free(entries);
    free(own);
    if (all < 0) {
        (void)snprintf(why, WHY_SIZE, "its GIDs cannot be read: %s", strerror((int)-all));
    } else if (port->offer.gids == 0) {
        (void)snprintf(why, WHY_SIZE,
                       "it has %d GIDs, none of them of RoCE version 2 (has its network interface "
                       "an address?)",
                       count);
    }
    return port->offer.gids != 0;
}

/* Reads what a port is. Returns false, and why, when it cannot be used. */
static bool query(xm_verbs_port_t *port, char why[WHY_SIZE])
{
    struct ibv_port_attr attr;
    struct ibv_device_attr device;
    int error = ibv_query_port(port->context, port->number, &attr);

    error = error == 0 ? ibv_query_device(port->context, &device) : error;
    if (error != 0) {
        (void)snprintf(why, WHY_SIZE, "%s", strerror(error));
        return false;
    }
    /* A port that is initialising or armed may become active soon, but nobody knows when, and
     * the job starts now. */
    if (attr.state != IBV_PORT_ACTIVE) {
        (void)snprintf(why, WHY_SIZE, "it is not active (%s)", ibv_port_state_str(attr.state));
        return false;
    }
    /* Limits are taken from the port and the device: they differ between vendors, and exceeding
     * one fails long after, when the first large message is written. */
    port->offer.mtu = (uint8_t)attr.active_mtu;
    port->max_message = attr.max_msg_sz < LONGEST_WRITE ? attr.max_msg_sz : LONGEST_WRITE;
    port->max_cqe = device.max_cqe;
    port->offer.infiniband = attr.link_layer == IBV_LINK_LAYER_INFINIBAND;
    if (!port->offer.infiniband) {
        return take_gids(port, why);
    }
    port->offer.lid = attr.lid;
    if (attr.lid == 0) {
        (void)snprintf(why, WHY_SIZE, "it has no LID (does a subnet manager run?)");
    }
    return attr.lid != 0;
}

/* Makes a descriptor non-blocking: asynchronous events, like completions, are read only when
 * they are there, and the read must not hang when another reader was faster. */
static int set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? errno : 0;
}

/* Frees what a port has, in the order in which its parts depend on each other. Fields are
 * cleared, so closing twice does no harm. */
static void close_port(xm_verbs_port_t *port)
{
    if (port->cq != NULL) {
        (void)ibv_destroy_cq(port->cq);
    }
    if (port->channel != NULL) {
        (void)ibv_destroy_comp_channel(port->channel);
    }
    if (port->pd != NULL) {
        (void)ibv_dealloc_pd(port->pd);
    }
    if (port->context != NULL) {
        (void)ibv_close_device(port->context);
    }
    port->cq = NULL;
    port->channel = NULL;
    port->pd = NULL;
    port->context = NULL;
}

/* Opens a port of a device. Returns false, and why, when it cannot be used; it is closed then.
 * Each port opens the device again, so that it has its own events and can fail alone. */
static bool open_port(struct ibv_device *device, int number, uint64_t rate, xm_verbs_port_t *port,
                      char why[WHY_SIZE])
{
    int error = 0;

    *port = (xm_verbs_port_t){.number = (uint8_t)number, .offer.rate = rate};
    (void)snprintf(port->offer.name, sizeof(port->offer.name), "%.56s:%d",
                   ibv_get_device_name(device), number);
    errno = 0;
    /* The reason is asked for in errno, which the library does not always set; 0 then gives a
     * harmless "Success". */
    port->context = ibv_open_device(device);
    if (port->context == NULL) {
        (void)snprintf(why, WHY_SIZE, "it cannot be opened: %s", strerror(errno));
        return false;
    }
    if (!query(port, why)) {
        close_port(port);
        return false;
    }
    /* A protection domain and a completion channel for this port alone; queue pairs are made
     * later. */
    port->pd = ibv_alloc_pd(port->context);
    port->channel = port->pd != NULL ? ibv_create_comp_channel(port->context) : NULL;
    error = port->channel != NULL ? set_nonblocking(port->channel->fd) : errno;
    error = error == 0 ? set_nonblocking(port->context->async_fd) : error;
    if (error != 0) {
        (void)snprintf(why, WHY_SIZE, "it cannot be used: %s", strerror(error));
        close_port(port);
        return false;
    }
    return true;
}

/* Plain comparison of names is enough: only the same order on all hosts matters. */
static int by_name(const void *left, const void *right)
{
    return strcmp(ibv_get_device_name(*(struct ibv_device *const *)left),
                  ibv_get_device_name(*(struct ibv_device *const *)right));
}

/* A device that cannot be asked is treated as one with a single port, which then gives the
 * reason when it is opened. */
static int ports_of(struct ibv_device *device)
{
    struct ibv_context *context = ibv_open_device(device);
    struct ibv_device_attr attr;
    int ports = 1;

    if (context != NULL) {
        ports = ibv_query_device(context, &attr) == 0 ? attr.phys_port_cnt : 1;
        (void)ibv_close_device(context);
    }
    return ports;
}

/* Every name of the list has a port (xm_nics_parse() adds the first one where it is missing),
 * so whole names are compared and "mlx5_1" does not mean "mlx5_10". */
bool xm_verbs_names_port(const xm_nics_t *list, const char *device, int number)
{
    char port[XM_NICS_NAME_SIZE];

    (void)snprintf(port, sizeof(port), "%.56s:%d", device, number);
    for (int i = 0; i < list->count; ++i) {
        if (strcmp(list->nic[i].device, port) == 0) {
            return true;
        }
    }
    return false;
}

/* Opens all usable ports but the unwanted ones. Each that is left out is remembered with its
 * reason, for the sentence that is needed if none remains. The rate is what the system tells;
 * unknown rates make all rails equal. */
static xm_status_t open_all(struct ibv_device **devices, int device_count,
                            const xm_nics_t *unwanted, int rank, xm_verbs_port_t *ports, int *count)
{
    char list[LIST_SIZE] = "", why[WHY_SIZE], text[WHY_SIZE + XM_NICS_NAME_SIZE];
    xm_nics_t nics;

    for (int i = 0; i < device_count; ++i) {
        for (int number = 1, last = ports_of(devices[i]); number <= last; ++number) {
            (void)snprintf(text, sizeof(text), "%.56s:%d", ibv_get_device_name(devices[i]), number);
            /* Further ports are ignored without a word: XM_NICS_MAX is what a rank can use. */
            if (*count == XM_NICS_MAX) {
                return XM_OK;
            }
            if (xm_verbs_names_port(unwanted, ibv_get_device_name(devices[i]), number)) {
                xm_text_list_add(list, sizeof(list), "; ", "%.56s:%d: XM_NICS excludes it",
                                 ibv_get_device_name(devices[i]), number);
            } else if (!open_port(devices[i], number, 0, &ports[*count], why)) {
                /* An unusable port is no error as long as another one works. */
                xm_text_list_add(list, sizeof(list), "; ", "%.56s:%d: %s",
                                 ibv_get_device_name(devices[i]), number, why);
            } else {
                /* A rate that cannot be read is no reason to go without the port; it then stays
                 * 0. */
                if (xm_nics_parse(ports[*count].offer.name, rank, "/sys", &nics) == XM_OK) {
                    ports[*count].offer.rate = nics.nic[0].rate;
                }
                ++*count;
            }
        }
    }
    return *count > 0 ? XM_OK : XM_NOT_FOUND("rank %d: no RDMA port can be used: %s", rank, list);
}

/* Opens the port that a user named: "mlx5_0:1", or "mlx5_0" for its first port. If there is no
 * such device the sentence lists those that exist, for the usual cause is a typing error. */
static xm_status_t open_named(struct ibv_device **devices, int device_count, const xm_nic_t *nic,
                              int rank, xm_verbs_port_t *port)
{
    char name[XM_NICS_NAME_SIZE], why[WHY_SIZE], list[LIST_SIZE] = "";
    size_t length = strcspn(nic->device, ":");
    int64_t number = 1;

    (void)snprintf(name, sizeof(name), "%.*s", (int)length, nic->device);
    if (nic->device[length] == ':') {
        xm_status_t status =
            xm_text_parse_int("XM_NICS: port", nic->device + length + 1, 1, 254, &number);

        if (status < 0) {
            return xm_error_prefix(status, "rank %d", rank);
        }
    }
    for (int i = 0; i < device_count; ++i) {
        if (strcmp(ibv_get_device_name(devices[i]), name) != 0) {
            xm_text_list_add(list, sizeof(list), "; ", "%s", ibv_get_device_name(devices[i]));
        } else if (open_port(devices[i], (int)number, nic->rate, port, why)) {
            return XM_OK;
        } else {
            /* The device exists, so the reason why its port cannot be used is what the user
             * needs. */
            return xm_error_set(XM_ERR_UNREACHABLE, "rank %d: XM_NICS: %s:%d cannot be used: %s",
                                rank, name, (int)number, why);
        }
    }
    return XM_NOT_FOUND("rank %d: XM_NICS: '%s' is no RDMA device; there is %s", rank, name,
                        list[0] != '\0' ? list : "none");
}

/* Opens the ports of XM_NICS, or all. Devices are sorted by name, since the order in which the
 * system lists them may differ from host to host, and rail i joins the i-th ports. */
xm_status_t xm_verbs_ports_open(const char *nics, int rank, xm_verbs_port_t ports[XM_NICS_MAX],
                                int *count)
{
    int device_count = 0;
    struct ibv_device **devices;
    xm_nics_t list;
    bool excluded = nics != NULL && nics[0] == '^';
    xm_status_t status = xm_nics_parse(excluded ? nics + 1 : nics, rank, "/sys", &list);

    *count = 0;
    if (status < 0) {
        return status;
    }
    errno = 0;
    devices = ibv_get_device_list(&device_count);
    if (devices == NULL || device_count == 0) {
        /* Without a device the way out is part of the sentence. */
        status = XM_NOT_FOUND("rank %d: this machine has no RDMA device%s%s: the verbs transport "
                              "cannot be used (XM_TRANSPORT=ucx can)",
                              rank, devices == NULL ? ", and " : "",
                              devices != NULL   ? ""
                              : errno == ENOSYS ? "its kernel has no RDMA modules loaded"
                                                : strerror(errno));
        goto free_list;
    }
    qsort((void *)devices, (size_t)device_count, sizeof(struct ibv_device *), by_name);
    /* An empty list means all ports; an exclusion means all but those. */
    if (excluded || list.nic[0].device[0] == '\0') {
        status = open_all(devices, device_count, &list, rank, ports, count);
    } else {
        while (*count < list.count && status == XM_OK) {
            status = open_named(devices, device_count, &list.nic[*count], rank, &ports[*count]);
            *count += status == XM_OK;
        }
    }

free_list:
    if (devices != NULL) {
        ibv_free_device_list(devices);
    }
    return status;
}

void xm_verbs_ports_close(xm_verbs_port_t *ports, int count)
{
    for (int i = 0; i < count; ++i) {
        close_port(&ports[i]);
    }
}
