/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shape of an emulated cluster: names, addresses and rates, and the orders to ip(8)
 * and tc(8) that make it. NICs are veth pairs with a token bucket at both ends, plugged into a
 * bridge for each rack, and those into one in the core. Nothing is executed here, so it is tested
 * without privileges.
 */
#include "bench/cluster/shape.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "bench/cluster/nic_rate.h"
#include "comm/base.h"

enum {
    MIN_QUEUE = 1 << 18, /* bytes; a few large segments */
    MIN_MTU = 576,
    MAX_MTU = 65521,
    HEAD_ADDRESS = 254,
    FIRST_TABLE = 100, /* of routes: NIC i has number FIRST_TABLE + i */
    MAX_PORTS = 1000   /* of a bridge, which has 1023 */
};

/* Above this sum of rates two cores have no time left for anything but the NICs. */
static const int64_t honest_sum = INT64_C(8000000000);

/* Names become host names and file names, so few characters are allowed. */
xm_status_t rb_cluster_name_check(const char *name)
{
    size_t length = strlen(name);
    bool good = length < RB_CLUSTER_NAME && isalpha((unsigned char)name[0]);

    for (size_t i = 0; i < length; ++i) {
        good = good && (isalnum((unsigned char)name[i]) || name[i] == '-');
    }
    if (!good || strcmp(name, "head") == 0) {
        return XM_INVALID("'%s' cannot be the name of a cluster: a letter, then letters, digits "
                          "and hyphens, at most %d in all",
                          name, RB_CLUSTER_NAME - 1);
    }
    return XM_OK;
}

static xm_status_t check_rate(const char *what, int host, int64_t rate)
{
    char low[32], high[32];

    if (rate < RB_NIC_RATE_MIN || rate > RB_NIC_RATE_MAX) {
        return XM_INVALID("%s %d has %" PRId64 " bit/s, which is outside %s … %s", what, host, rate,
                          rb_nic_rate_format(RB_NIC_RATE_MIN, low, sizeof(low)),
                          rb_nic_rate_format(RB_NIC_RATE_MAX, high, sizeof(high)));
    }
    return XM_OK;
}

/* The limits are those of the addresses and of what the queues can shape. */
xm_status_t rb_cluster_shape_check(const rb_cluster_shape_t *shape)
{
    xm_status_t status = XM_OK;

    XM_TRY(rb_cluster_name_check(shape->name));
    if (shape->hosts < 1 || shape->hosts > RB_CLUSTER_HOSTS || shape->nics < 1 ||
        shape->nics > RB_CLUSTER_NICS) {
        return XM_INVALID(
            "%d hosts with %d NICs each: 1 to %d hosts with 1 to %d NICs can be emulated",
            shape->hosts, shape->nics, RB_CLUSTER_HOSTS, RB_CLUSTER_NICS);
    }
    if (shape->racks < 1 || shape->hosts % shape->racks != 0) {
        return XM_INVALID("%d hosts do not fill %d racks evenly", shape->hosts, shape->racks);
    }
    if (shape->hosts / shape->racks * shape->nics > MAX_PORTS) {
        return XM_INVALID("%d hosts with %d NICs are more than the %d of one switch; give racks",
                          shape->hosts / shape->racks, shape->nics, MAX_PORTS);
    }
    if (shape->mtu < MIN_MTU || shape->mtu > MAX_MTU) {
        return XM_INVALID("an MTU of %d is outside %d … %d", shape->mtu, MIN_MTU, MAX_MTU);
    }
    if (shape->core_share != 0 && !(shape->core_share >= 0.01 && shape->core_share <= 1)) {
        return XM_INVALID("a share of %g of a core is outside 0.01 … 1", shape->core_share);
    }
    for (int h = 0; h < shape->hosts && status == XM_OK; ++h) {
        for (int i = 0; i < shape->nics && status == XM_OK; ++i) {
            status = check_rate("a NIC of host", h, shape->rate[h][i]);
        }
    }
    if (status == XM_OK && shape->racks > 1) {
        status = check_rate("the uplink of rack", 0, shape->uplink);
    }
    return status;
}

/* Hosts and NICs without a rate of their own take those given in turn. */
void rb_cluster_shape_set_rates(rb_cluster_shape_t *shape, const int64_t *host_rates,
                                int host_count, const int64_t *nic_rates, int nic_count)
{
    for (int h = 0; h < RB_CLUSTER_HOSTS; ++h) {
        for (int i = 0; i < RB_CLUSTER_NICS; ++i) {
            shape->rate[h][i] =
                nic_count > 0 ? nic_rates[i % nic_count] : host_rates[h % host_count];
        }
    }
}

/* The sum of one host's rates, or of all for a negative number. */
int64_t rb_cluster_shape_rate(const rb_cluster_shape_t *shape, int host)
{
    int64_t sum = 0;

    for (int h = 0; h < shape->hosts; ++h) {
        for (int i = 0; i < shape->nics && (host < 0 || h == host); ++i) {
            sum += shape->rate[h][i];
        }
    }
    return sum;
}

void rb_cluster_shape_warn(const rb_cluster_shape_t *shape, const char *program)
{
    int64_t sum = rb_cluster_shape_rate(shape, -1);
    char text[32], limit[32];

    if (sum > honest_sum) {
        (void)fprintf(stderr,
                      "%s: the NICs' rates add up to %s; above %s the machine, not the NICs, may "
                      "be what is measured\n",
                      program, rb_nic_rate_format(sum, text, sizeof(text)),
                      rb_nic_rate_format(honest_sum, limit, sizeof(limit)));
    }
}

/* Accepts "3" and "NAME3". */
int rb_cluster_shape_find(const rb_cluster_shape_t *shape, const char *text)
{
    size_t prefix = strlen(shape->name);
    char name[RB_CLUSTER_NAME + 16];
    int64_t host;

    if (strncmp(text, shape->name, prefix) == 0) {
        text += prefix;
    }
    if (xm_text_parse_int("host", text, 0, shape->hosts - 1, &host) < 0) {
        return -1;
    }
    /* Only the plain form of a number is a host: "007" is none. */
    (void)snprintf(name, sizeof(name), "%d", (int)host);
    return strcmp(name, text) == 0 ? (int)host : -1;
}

char *rb_cluster_shape_address(int host, int nic, char *buffer, size_t size)
{
    (void)snprintf(buffer, size, "10.77.%d.%d", nic, host + 1);
    return buffer;
}

char *rb_cluster_shape_nics(const rb_cluster_shape_t *shape, int host, int first, int step,
                            char *buffer, size_t size)
{
    size_t used = 0;

    buffer[0] = '\0';
    for (int i = first; i < shape->nics && used < size; i += step) {
        used += (size_t)snprintf(buffer + used, size - used, "%snic%d=%" PRId64,
                                 i > first ? "," : "", i, shape->rate[host][i]);
    }
    return buffer;
}

/*
 * Writes a NIC's fixed MAC address. Fixed addresses can be told to all hosts beforehand,
 * without ARP: the kernel's table of what it learnt is small, and all hosts of the
 * machine share it.
 */
static void print_mac(FILE *orders, int host, int nic)
{
    (void)fprintf(orders, "02:78:6d:%02x:00:%02x", nic, host + 1);
}

static void add_neighbour(FILE *orders, int host, int nic, const char *device)
{
    char address[32];

    (void)fprintf(orders, "neighbour add %s lladdr ",
                  rb_cluster_shape_address(host, nic, address, sizeof(address)));
    print_mac(orders, host, nic);
    (void)fprintf(orders, " nud permanent dev %s\n", device);
}

static int rack_of(const rb_cluster_shape_t *shape, int host)
{
    return host / (shape->hosts / shape->racks);
}

/* Spanning tree and its delays are off: the bridges form a tree by construction. */
static void add_bridge(FILE *orders, const rb_cluster_shape_t *shape, const char *name)
{
    (void)fprintf(orders,
                  "link add %s mtu %d type bridge forward_delay 0 stp_state 0 mcast_snooping 0\n"
                  "link set %s up\n",
                  name, shape->mtu, name);
}

/* Adds both ends of a rack's uplink: u at the rack, d at the core. */
static void add_uplink(FILE *orders, const rb_cluster_shape_t *shape, int rack)
{
    (void)fprintf(orders,
                  "link add u%d mtu %d type veth peer name d%d mtu %d\n"
                  "link set u%d master b%d up\n"
                  "link set d%d master core up\n",
                  rack, shape->mtu, rack, shape->mtu, rack, rack, rack);
}

/* The head's addresses lie on the first rack's bridge. */
/* Segments pass the queues of other hosts and of uplinks, too, and none may be larger than its
 * burst: those of the slowest. */
static int segment_of(const rb_cluster_shape_t *shape)
{
    int64_t least = shape->racks > 1 ? shape->uplink : RB_NIC_RATE_MAX;

    for (int h = 0; h < shape->hosts; ++h) {
        for (int i = 0; i < shape->nics; ++i) {
            least = shape->rate[h][i] < least ? shape->rate[h][i] : least;
        }
    }
    return (int)rb_nic_rate_segment(least, shape->mtu);
}

void rb_cluster_shape_switch_links(const rb_cluster_shape_t *shape, const pid_t *pids, FILE *orders)
{
    int segment = segment_of(shape);
    char name[16];

    (void)fprintf(orders, "link set lo up\n");
    for (int r = 0; r < shape->racks; ++r) {
        (void)snprintf(name, sizeof(name), "b%d", r);
        add_bridge(orders, shape, name);
    }
    if (shape->racks > 1) {
        add_bridge(orders, shape, "core");
    }
    for (int r = 0; r < shape->racks && shape->racks > 1; ++r) {
        add_uplink(orders, shape, r);
    }
    for (int i = 0; i < shape->nics; ++i) {
        (void)fprintf(orders, "address add 10.77.%d.%d/24 dev b0\n", i, HEAD_ADDRESS);
        for (int h = 0; h < shape->hosts; ++h) {
            (void)fprintf(orders, "link add p%dh%d mtu %d type veth peer name nic%d address ", i, h,
                          shape->mtu, i);
            print_mac(orders, h, i);
            (void)fprintf(orders,
                          " mtu %d gso_max_size %d netns %d\nlink set p%dh%d master b%d up\n",
                          shape->mtu, segment, (int)pids[h], i, h, rack_of(shape, h));
            add_neighbour(orders, h, i, "b0");
        }
    }
}

/* A token bucket with a short queue behind it: 2 ms of burst, and 10 to 20 ms of queue,
 * beyond which packets are dropped as a switch would. */
static void shape_queue(const rb_cluster_shape_t *shape, FILE *orders, const char *device,
                        int64_t rate)
{
    int64_t bytes = rate / 8, burst = rb_nic_rate_burst(rate, shape->mtu),
            queue = rate < 500000000 ? bytes / 50 : bytes / 100;

    queue = queue > MIN_QUEUE ? queue : MIN_QUEUE;
    queue = shape->queue > 0 ? shape->queue : queue;
    (void)fprintf(orders,
                  "qdisc add dev %s root handle 1: htb default 1\n"
                  "class add dev %s parent 1: classid 1:1 htb rate %" PRId64 "bit ceil %" PRId64
                  "bit burst %" PRId64 " cburst %" PRId64 " quantum 60000\n"
                  "qdisc add dev %s parent 1:1 bfifo limit %" PRId64 "\n",
                  device, device, rate, rate, burst, burst, device, queue);
}

void rb_cluster_shape_switch_queues(const rb_cluster_shape_t *shape, FILE *orders)
{
    char name[32];

    for (int i = 0; i < shape->nics; ++i) {
        for (int h = 0; h < shape->hosts; ++h) {
            (void)snprintf(name, sizeof(name), "p%dh%d", i, h);
            shape_queue(shape, orders, name, shape->rate[h][i]);
        }
    }
    for (int r = 0; r < shape->racks && shape->racks > 1; ++r) {
        (void)snprintf(name, sizeof(name), "u%d", r);
        shape_queue(shape, orders, name, shape->uplink);
        (void)snprintf(name, sizeof(name), "d%d", r);
        shape_queue(shape, orders, name, shape->uplink);
    }
}

/*
 * What has the address of a NIC leaves through that NIC, whichever NIC of the other host it goes
 * to, as in a network of RDMA devices; the kernel alone would go by the destination. Neighbours are
 * entered by hand for the reason that print_mac() gives.
 */
void rb_cluster_shape_host_links(const rb_cluster_shape_t *shape, int host, FILE *orders)
{
    char address[32], device[16];

    (void)fprintf(orders, "link set lo up\n");
    for (int i = 0; i < shape->nics; ++i) {
        (void)rb_cluster_shape_address(host, i, address, sizeof(address));
        (void)snprintf(device, sizeof(device), "nic%d", i);
        (void)fprintf(orders, "address add %s/24 dev %s\nlink set %s up\n", address, device,
                      device);
        if (shape->nics > 1) {
            (void)fprintf(orders,
                          "rule add from %s lookup %d\nroute add 10.77.0.0/16 dev %s table %d\n",
                          address, FIRST_TABLE + i, device, FIRST_TABLE + i);
        }
        for (int h = 0; h < shape->hosts; ++h) {
            for (int j = 0; j < shape->nics && h != host; ++j) {
                add_neighbour(orders, h, j, device);
            }
        }
    }
}

void rb_cluster_shape_host_queues(const rb_cluster_shape_t *shape, int host, FILE *orders)
{
    char name[32];

    for (int i = 0; i < shape->nics; ++i) {
        (void)snprintf(name, sizeof(name), "nic%d", i);
        shape_queue(shape, orders, name, shape->rate[host][i]);
    }
}
