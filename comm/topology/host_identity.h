/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file host_identity.h
 * What tells hosts and machines apart. Internal.
 *
 * A machine is what one kernel of one boot runs under one host name: containers of one machine have
 * its boot id, clones of an image do not. A host is a machine, unless a name says otherwise
 * (XM_HOST). Identities carry their kind, so that no host name can be taken for a machine.
 */
#pragma once

enum { XM_HOST_NAME_SIZE = 256, XM_HOST_IDENTITY_SIZE = XM_HOST_NAME_SIZE + 80 };

typedef struct xm_host_identity {
    char host[XM_HOST_IDENTITY_SIZE];
    char machine[XM_HOST_IDENTITY_SIZE];
    char name[XM_HOST_NAME_SIZE]; /**< of the host, for people */
} xm_host_identity_t;

/** Of this process. @p host: the host's name; NULL or empty means XM_HOST, else the machine's own.
 */
void xm_host_identity_read(const char *host, xm_host_identity_t *identity);
