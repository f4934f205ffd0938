/* SPDX-License-Identifier: Apache-2.0 */
/* Which network a NIC is in, as one number that ranks can compare: equal keys mean that the two
 * reach each other. For IP it is the subnet, for InfiniBand the subnet prefix of the port, and
 * RDMA over Ethernet without an address counts as one network, since nothing better is known.
 * Only the number travels, hashed, so hosts need not exchange texts of any length. */
#include "comm/topology/nic_network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_SIZE = 128 };

struct xm_nic_networks {
    const char *sysfs;
    struct ifaddrs *addresses;
};

xm_status_t xm_nic_networks_create(const char *sysfs, xm_nic_networks_t **networks)
{
    xm_nic_networks_t *created = calloc(1, sizeof(*created));

    XM_NEED_MEMORY(created, "the networks of this machine");
    created->sysfs = sysfs;
    if (getifaddrs(&created->addresses) != 0) {
        xm_status_t status =
            xm_error_set(XM_ERR_IO, "cannot list this machine's addresses: %s", strerror(errno));

        free(created);
        return status;
    }
    *networks = created;
    return XM_OK;
}

/* Copies the bytes of an address whose subnet others can be in; returns how many. Link-local
 * addresses are left out: a management controller's USB network has one on every host, and
 * joins none. */
static size_t bytes_of(const struct sockaddr *address, uint8_t bytes[16])
{
    if (address->sa_family == AF_INET) {
        struct sockaddr_in four;

        memcpy(&four, address, sizeof(four));
        memcpy(bytes, &four.sin_addr, 4);
        return bytes[0] == 169 && bytes[1] == 254 ? 0 : 4;
    }
    if (address->sa_family == AF_INET6) {
        struct sockaddr_in6 six;

        memcpy(&six, address, sizeof(six));
        memcpy(bytes, &six.sin6_addr, 16);
        return IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr) ? 0 : 16;
    }
    return 0;
}

bool xm_nic_network_subnet(const struct sockaddr *address, const struct sockaddr *mask, char *text,
                           size_t size)
{
    char subnet[INET6_ADDRSTRLEN], netmask[INET6_ADDRSTRLEN];
    uint8_t bytes[16], mask_bytes[16] = {0};
    size_t length;

    if (address == NULL || mask == NULL || mask->sa_family != address->sa_family) {
        return false;
    }
    length = bytes_of(address, bytes);
    if (length == 0) {
        return false;
    }
    (void)bytes_of(mask, mask_bytes);
    for (size_t i = 0; i < length; ++i) {
        bytes[i] &= mask_bytes[i];
    }
    (void)inet_ntop(address->sa_family, bytes, subnet, sizeof(subnet));
    (void)inet_ntop(address->sa_family, mask_bytes, netmask, sizeof(netmask));
    (void)snprintf(text, size, "ip %s/%s", subnet, netmask);
    return true;
}

/* Finds the first IPv4 subnet of an interface, or else its first IPv6 one; the text stays empty
 * when it has neither. */
static void subnet_of(const xm_nic_networks_t *networks, const char *interface,
                      char text[TEXT_SIZE])
{
    static const sa_family_t families[] = {AF_INET, AF_INET6};

    for (int i = 0; i < 2; ++i) {
        for (const struct ifaddrs *entry = networks->addresses; entry != NULL;
             entry = entry->ifa_next) {
            if (entry->ifa_addr != NULL && entry->ifa_addr->sa_family == families[i] &&
                strcmp(entry->ifa_name, interface) == 0 &&
                xm_nic_network_subnet(entry->ifa_addr, entry->ifa_netmask, text, TEXT_SIZE)) {
                return;
            }
        }
    }
}

/* Reads the subnet prefix, which is the upper half of a port's identifier: fe80:0000:0000:0000. */
static void infiniband_subnet_of(const xm_nic_networks_t *networks, const xm_topology_device_t *nic,
                                 char text[TEXT_SIZE])
{
    char path[256], prefix[20] = "";
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/%d/gids/0", networks->sysfs,
                   nic->rdma_name, nic->rdma_port);
    file = fopen(path, "re");
    if (file != NULL) {
        if (fgets(prefix, sizeof(prefix), file) == NULL) {
            prefix[0] = '\0';
        }
        (void)fclose(file);
    }
    (void)snprintf(text, TEXT_SIZE, "ib %s", prefix);
}

/* The key of a NIC's network; 0: in none, so it never compares equal. */
uint64_t xm_nic_network_key(const xm_nic_networks_t *networks, const xm_topology_device_t *nic,
                            xm_fabric_t fabric)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    char text[TEXT_SIZE] = "";

    if (fabric == XM_FABRIC_INFINIBAND) {
        infiniband_subnet_of(networks, nic, text);
    } else {
        subnet_of(networks, nic->interface, text);
    }
    if (text[0] == '\0' && fabric == XM_FABRIC_RDMA) {
        (void)snprintf(text, sizeof(text), "rdma");
    }
    /* FNV-1a */
    for (const char *at = text; *at != '\0'; ++at) {
        hash = (hash ^ (uint8_t)*at) * UINT64_C(0x100000001b3);
    }
    return text[0] != '\0' ? hash : 0;
}

void xm_nic_networks_destroy(xm_nic_networks_t *networks)
{
    if (networks != NULL) {
        freeifaddrs(networks->addresses);
        free(networks);
    }
}
