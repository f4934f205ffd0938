/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor's look at RDMA ports, MTUs and TCP. The faults it knows are those that let a job
 * start and then make it slow or hang: packets larger than an interface takes, MTUs that
 * differ, buffers too small for the rate. It reads sysfs below the root; only a port's own MTU
 * comes from its device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/doctor/doctor_private.h"
#include "comm/base.h"

/* RoCE version 2 adds IPv6, UDP, its own headers and checksums to a packet. */
enum { ROCE_OVERHEAD = 40 + 8 + 12 + 28 + 4 };
/* An Ethernet interface needs this MTU for RDMA packets of 4096 bytes. */
enum { JUMBO = 4096 + ROCE_OVERHEAD };

/* The rate of an unknown NIC, for TCP's buffers. */
static const int64_t assumed_mbps = 10000;

/* ---- RDMA ports ------------------------------------------------------------------------------ */

/* The contents of a port's GID table, counted by kind. */
typedef struct {
    const char *device, *port;
    int v2, v2_ipv4;
    char interface[XM_DOCTOR_NAME_SIZE]; /* of the first entry that has one */
} gids_t;

static bool is_zero(const char *gid)
{
    return strspn(gid, "0:") == strlen(gid);
}

/* Empty entries of the table are all zero. */
static void visit_gid(xm_doctor_t *doctor, const char *index, void *arg)
{
    static const char mapped[] = "0000:0000:0000:0000:0000:ffff:";
    gids_t *gids = arg;
    char gid[64], type[32];

    if (!xm_doctor_read(doctor, gid, sizeof(gid), "/sys/class/infiniband/%s/ports/%s/gids/%s",
                        gids->device, gids->port, index) ||
        is_zero(gid)) {
        return;
    }
    if (xm_doctor_read(doctor, type, sizeof(type),
                       "/sys/class/infiniband/%s/ports/%s/gid_attrs/types/%s", gids->device,
                       gids->port, index) &&
        strcmp(type, "RoCE v2") == 0) {
        ++gids->v2;
        gids->v2_ipv4 += strncmp(gid, mapped, strlen(mapped)) == 0;
    }
    if (gids->interface[0] == '\0') {
        (void)xm_doctor_read(doctor, gids->interface, sizeof(gids->interface),
                             "/sys/class/infiniband/%s/ports/%s/gid_attrs/ndevs/%s", gids->device,
                             gids->port, index);
    }
}

/* The largest of RDMA's MTUs (256, 512, … 4096) that an interface has room for. */
static int fitting_mtu(int64_t interface_mtu)
{
    int mtu = 4096;

    while (mtu > 256 && mtu + ROCE_OVERHEAD > interface_mtu) {
        mtu /= 2;
    }
    return mtu;
}

/* Without an entry of RoCE version 2 the verbs transport cannot use the port at all. */
static void check_gids(xm_doctor_t *doctor, const char *name, const gids_t *gids)
{
    char subject[XM_FINDING_SUBJECT];

    (void)snprintf(subject, sizeof(subject), "GIDs of %s", name);
    if (gids->v2 == 0) {
        xm_doctor_note(doctor, XM_SEVERITY_FAIL, subject,
                       "Give the interface an address, and enable RoCE v2 (cma_roce_mode, or the "
                       "driver's configuration): version 1 is not used.",
                       "no RoCE v2 entry");
    } else if (gids->v2_ipv4 == 0) {
        xm_doctor_note(doctor, XM_SEVERITY_WARN, subject,
                       "Give the interface an IPv4 address: link-local ones are not routed, and "
                       "peers may lack IPv6.",
                       "%d of RoCE v2, none of an IPv4 address", gids->v2);
    } else {
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "", "%d of RoCE v2, %d of IPv4 addresses",
                       gids->v2, gids->v2_ipv4);
    }
}

/* Checks the MTU that packets of a port have: only its device knows. Larger than the interface
 * carries is a failure, for such packets are lost; smaller than possible costs speed. */
static void check_port_mtu(xm_doctor_t *doctor, const char *name, const char *interface)
{
    const xm_doctor_facts_t *facts = doctor->facts;
    char subject[XM_FINDING_SUBJECT];
    int64_t carried = -1;
    int index = 0, fitting;

    while (index < facts->ports && strcmp(facts->port[index].name, name) != 0) {
        ++index;
    }
    (void)snprintf(subject, sizeof(subject), "MTU of %s", name);
    if (index == facts->ports) {
        xm_doctor_note(doctor, XM_SEVERITY_ABSENT, subject, "", "its device does not tell");
        return;
    }
    if (interface[0] != '\0') {
        (void)xm_doctor_read_number(doctor, &carried, "/sys/class/net/%s/mtu", interface);
    }
    fitting = carried > 0 ? fitting_mtu(carried) : facts->port[index].max_mtu;
    fitting = fitting < facts->port[index].max_mtu ? fitting : facts->port[index].max_mtu;
    if (facts->port[index].mtu > fitting) {
        xm_doctor_note(doctor, XM_SEVERITY_FAIL, subject,
                       "Raise the interface's MTU (ip link set … mtu 9000, switches too), or bring "
                       "it down and up so that the port follows.",
                       "packets of %d bytes, but %s takes %lld", facts->port[index].mtu, interface,
                       (long long)carried);
    } else if (facts->port[index].mtu < facts->port[index].max_mtu) {
        xm_doctor_note(doctor, XM_SEVERITY_WARN, subject,
                       interface[0] != '\0'
                           ? "Raise the interface's MTU to 4200 or more on all hosts and switches: "
                             "fewer packets for the same bytes."
                           : "Raise it at the subnet manager.",
                       "packets of %d bytes, %d are possible%s%s", facts->port[index].mtu,
                       facts->port[index].max_mtu, interface[0] != '\0' ? "; MTU of " : "",
                       interface);
    } else {
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "", "packets of %d bytes",
                       facts->port[index].mtu);
    }
}

/* A port that is down is a warning and not a failure, since it may not be meant to be used. */
static void visit_port(xm_doctor_t *doctor, const char *port, void *arg)
{
    const char *device = arg;
    gids_t gids = {.device = device, .port = port};
    char name[XM_DOCTOR_NAME_SIZE], subject[XM_FINDING_SUBJECT], path[256];
    char state[64] = "unknown", layer[32] = "unknown", rate[64] = "";
    bool active, ethernet;

    (void)snprintf(name, sizeof(name), "%s:%s", device, port);
    (void)snprintf(subject, sizeof(subject), "port %s", name);
    (void)snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%s", device, port);
    (void)xm_doctor_read(doctor, state, sizeof(state), "%s/state", path);
    (void)xm_doctor_read(doctor, layer, sizeof(layer), "%s/link_layer", path);
    (void)xm_doctor_read(doctor, rate, sizeof(rate), "%s/rate", path);
    active = strstr(state, "ACTIVE") != NULL && strstr(state, "DEFER") == NULL;
    ethernet = strcmp(layer, "Ethernet") == 0;
    doctor->rdma_active = doctor->rdma_active || active;
    xm_doctor_note(doctor, active ? XM_SEVERITY_OK : XM_SEVERITY_WARN, subject,
                   ethernet ? "Bring the interface up and look at cable and switch; leave the port "
                              "out of XM_NICS if it is not meant to be used."
                            : "Look at cable, switch and subnet manager; leave the port out of "
                              "XM_NICS if it is not meant to be used.",
                   "%s, %s, %s", layer, state, rate[0] != '\0' ? rate : "rate unknown");
    if (!active) {
        return;
    }
    (void)snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%s/gids", device, port);
    (void)xm_doctor_list(doctor, path, visit_gid, &gids);
    if (ethernet) {
        check_gids(doctor, name, &gids);
    }
    check_port_mtu(doctor, name, ethernet ? gids.interface : "");
}

static void visit_device(xm_doctor_t *doctor, const char *name, void *arg)
{
    char path[256], device[XM_DOCTOR_NAME_SIZE];

    (void)arg;
    doctor->rdma = true;
    (void)snprintf(device, sizeof(device), "%s", name);
    (void)snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports", name);
    (void)xm_doctor_list(doctor, path, visit_port, device);
}

/* No RDMA is a failure only if the transport is to be verbs. */
static void check_rdma(xm_doctor_t *doctor)
{
    static const char advice[] = "Load the driver (rdma link; modprobe mlx5_ib, rdma_rxe …) and "
                                 "bring a port up, or use XM_TRANSPORT=ucx.";

    (void)xm_doctor_list(doctor, "/sys/class/infiniband", visit_device, NULL);
    if (!doctor->rdma) {
        xm_doctor_note(doctor, doctor->params->verbs ? XM_SEVERITY_FAIL : XM_SEVERITY_ABSENT,
                       "RDMA devices", advice, "none");
    } else if (!doctor->rdma_active && doctor->params->verbs) {
        xm_doctor_note(doctor, XM_SEVERITY_FAIL, "RDMA devices", advice, "no active port");
    }
}

/* ---- interfaces ------------------------------------------------------------------------------ */

enum { DIFFERENT_MTUS = 8 };

typedef struct {
    int count;
    int64_t mtu[DIFFERENT_MTUS]; /* the different ones, ascending */
    int different;
    int64_t fastest; /* Mbit/s; 0: unknown */
    char list[192];
} interfaces_t;

/* Keeps a short sorted list without doubles. */
static void add_mtu(interfaces_t *found, int64_t mtu)
{
    int place = 0;

    while (place < found->different && found->mtu[place] < mtu) {
        ++place;
    }
    if ((place < found->different && found->mtu[place] == mtu) ||
        found->different == DIFFERENT_MTUS) {
        return;
    }
    memmove(&found->mtu[place + 1], &found->mtu[place],
            (size_t)(found->different++ - place) * sizeof(found->mtu[0]));
    found->mtu[place] = mtu;
}

/* Visits an interface. Only one that has a device below it is a NIC, not bridges and tunnels. */
static void visit_interface(xm_doctor_t *doctor, const char *name, void *arg)
{
    interfaces_t *found = arg;
    char state[32] = "", type[64];
    int64_t mtu, speed = 0;

    if (!xm_doctor_read(doctor, type, sizeof(type), "/sys/class/net/%s/device/vendor", name) &&
        !xm_doctor_read(doctor, type, sizeof(type), "/sys/class/net/%s/device/modalias", name)) {
        return;
    }
    (void)xm_doctor_read(doctor, state, sizeof(state), "/sys/class/net/%s/operstate", name);
    if ((strcmp(state, "up") != 0 && strcmp(state, "unknown") != 0) ||
        !xm_doctor_read_number(doctor, &mtu, "/sys/class/net/%s/mtu", name)) {
        return;
    }
    (void)xm_doctor_read_number(doctor, &speed, "/sys/class/net/%s/speed", name);
    found->fastest = speed > found->fastest ? speed : found->fastest;
    ++found->count;
    add_mtu(found, mtu);
    xm_text_list_add(found->list, sizeof(found->list), ", ", "%s %lld", name, (long long)mtu);
}

/* Unequal MTUs lose large packets; small ones cost processor time at high rates. */
static void check_interfaces(xm_doctor_t *doctor, const interfaces_t *found)
{
    static const char subject[] = "interface MTUs";

    if (found->count == 0) {
        xm_doctor_note(doctor, XM_SEVERITY_ABSENT, subject, "", "no hardware NIC is up");
    } else if (found->different > 1) {
        xm_doctor_note(doctor, XM_SEVERITY_WARN, subject,
                       "Make those of one network equal (ip link set … mtu …), or leave the others "
                       "out of XM_NICS: unequal ones lose large packets.",
                       "%s: not equal", found->list);
    } else if (found->mtu[0] < JUMBO && found->fastest >= 25000) {
        xm_doctor_note(
            doctor, XM_SEVERITY_WARN, subject,
            "Jumbo frames (ip link set … mtu 9000, on all hosts and switches) spare much "
            "of the processors' time.",
            "%s at %g Gbit/s", found->list, (double)found->fastest * 1e-3);
    } else {
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "", "%s", found->list);
    }
}

void xm_doctor_format_mtus(const char *root, char *text, size_t size)
{
    xm_doctor_params_t params = {.root = root};
    xm_doctor_t doctor = {.params = &params};
    interfaces_t found = {0};

    text[0] = '\0';
    (void)xm_doctor_list(&doctor, "/sys/class/net", visit_interface, &found);
    for (int i = 0; i < found.different; ++i) {
        xm_text_list_add(text, size, " ", "%lld", (long long)found.mtu[i]);
    }
}

/* ---- TCP ------------------------------------------------------------------------------------- */

/* Reads the third number of tcp_rmem and tcp_wmem: how large buffers may grow. */
static int64_t read_largest(const xm_doctor_t *doctor, const char *name)
{
    char text[96], *at = text;
    long long number = -1;

    if (!xm_doctor_read(doctor, text, sizeof(text), "/proc/sys/net/ipv4/%s", name)) {
        return -1;
    }
    for (int i = 0; i < 3; ++i) {
        char *end;

        number = strtoll(at, &end, 10);
        if (end == at) {
            return -1;
        }
        at = end;
    }
    return number;
}

/* A connection carries no more than its buffers per round trip, so they have to hold what is
 * under way. */
static void check_tcp(xm_doctor_t *doctor, int64_t mbps)
{
    int64_t receive = read_largest(doctor, "tcp_rmem"), send = read_largest(doctor, "tcp_wmem");
    int64_t rate = mbps > 0 ? mbps : assumed_mbps, idle;
    /* A buffer must hold the bytes that are under way in a millisecond, the round trip of a busy
     * network. */
    int64_t needed = rate * 1000000 / 8 / 1000, least = receive < send ? receive : send;
    char least_text[32], needed_text[32];

    if (least < 0) {
        xm_doctor_note(doctor, XM_SEVERITY_ABSENT, "TCP buffers", "", "the kernel does not tell");
    } else {
        xm_doctor_note(doctor, least < needed ? XM_SEVERITY_WARN : XM_SEVERITY_OK, "TCP buffers",
                       "Raise the third number of sysctl net.ipv4.tcp_rmem and net.ipv4.tcp_wmem.",
                       "grow to %s; %s are under way in 1 ms at %g Gbit/s",
                       xm_text_format_bytes((uint64_t)least, least_text, sizeof(least_text)),
                       xm_text_format_bytes((uint64_t)needed, needed_text, sizeof(needed_text)),
                       (double)rate * 1e-3);
    }
    if (!xm_doctor_read_number(doctor, &idle, "/proc/sys/net/ipv4/tcp_slow_start_after_idle")) {
        xm_doctor_note(doctor, XM_SEVERITY_ABSENT, "TCP after a pause", "",
                       "the kernel does not tell");
    } else {
        xm_doctor_note(doctor, idle != 0 ? XM_SEVERITY_WARN : XM_SEVERITY_OK, "TCP after a pause",
                       "sysctl net.ipv4.tcp_slow_start_after_idle=0: between two reshards a "
                       "connection is idle.",
                       idle != 0 ? "connections start slowly again" : "connections stay fast");
    }
}

void xm_doctor_check_network(xm_doctor_t *doctor)
{
    interfaces_t found = {0};

    check_rdma(doctor);
    (void)xm_doctor_list(doctor, "/sys/class/net", visit_interface, &found);
    check_interfaces(doctor, &found);
    check_tcp(doctor, found.fastest);
}
