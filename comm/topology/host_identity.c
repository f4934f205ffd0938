/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks share a host, and which a machine. A host's name alone does not tell: containers
 * and cloned machines have equal names, so the kernel's boot id is added. XM_HOST replaces the
 * host's identity but not the machine's: that is how one machine emulates several hosts,
 * between which shared memory must not be used. */
#include "comm/topology/host_identity.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/base.h"

static void read_machine_name(char *name, size_t size)
{
    if (gethostname(name, size) != 0) {
        (void)snprintf(name, size, "localhost");
    }
    name[size - 1] = '\0';
}

/* Without a boot id the name has to do. */
static void read_boot_id(char *id, size_t size)
{
    FILE *stream = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (stream == NULL || fgets(id, (int)size, stream) == NULL) {
        id[0] = '\0';
    }
    id[strcspn(id, "\n")] = '\0';
    if (stream != NULL) {
        (void)fclose(stream);
    }
}

/* Texts carry their kind, so a host called like a machine's identity is still another one. */
void xm_host_identity_read(const char *host, xm_host_identity_t *identity)
{
    char machine_name[XM_HOST_NAME_SIZE], boot_id[64];

    read_machine_name(machine_name, sizeof(machine_name));
    read_boot_id(boot_id, sizeof(boot_id));
    if (host == NULL || host[0] == '\0') {
        host = xm_config_string(XM_CONFIG_HOST);
    }
    (void)snprintf(identity->machine, sizeof(identity->machine), "machine %s %s", machine_name,
                   boot_id);
    if (host[0] != '\0') {
        (void)snprintf(identity->host, sizeof(identity->host), "host %s", host);
    } else {
        memcpy(identity->host, identity->machine, sizeof(identity->host));
    }
    (void)snprintf(identity->name, sizeof(identity->name), "%s",
                   host[0] != '\0' ? host : machine_name);
}
