/* SPDX-License-Identifier: Apache-2.0 */
/* How a rank of the TCP bootstrap names itself and others, and how it proves its identity. Every
 * sentence about a rank names host and process, because "rank 3" alone helps nobody who has to find
 * the process among a thousand. */
#include <stdio.h>
#include <unistd.h>

#include "comm/job/bootstrap_tcp.h"
#include "comm/base.h"

enum { LISTED_RANKS = 8 };

void xm_bootstrap_own_host(char *host, size_t size)
{
    const char *configured = xm_config_string(XM_CONFIG_HOST);

    if (configured[0] != '\0') {
        (void)snprintf(host, size, "%s", configured);
    } else if (gethostname(host, size) != 0) {
        (void)snprintf(host, size, "?");
    }
    host[size - 1] = '\0';
}

void xm_bootstrap_identify(const xm_bootstrap_tcp_t *self, xm_bootstrap_identity_t *identity)
{
    *identity = (xm_bootstrap_identity_t){
        .rank = self->base.rank, .size = self->base.size, .pid = (int)getpid()};
    (void)snprintf(identity->host, sizeof(identity->host), "%s", self->host);
}

/* The proof covers the encoded identity, so neither rank nor size can be changed on the way. */
void xm_bootstrap_prove(const xm_job_secret_t *secret, const char *role,
                        const uint8_t own[XM_JOB_NONCE_SIZE],
                        const uint8_t other[XM_JOB_NONCE_SIZE],
                        const xm_bootstrap_identity_t *identity, uint8_t proof[XM_JOB_PROOF_SIZE])
{
    uint8_t bytes[XM_BOOTSTRAP_IDENTITY_SIZE];

    xm_job_secret_prove(secret, role, own, other, bytes,
                        xm_bootstrap_identity_encode(identity, bytes), proof);
}

/* The name of a rank for sentences. Ranks other than 0 know only rank 0 and themselves, so
 * others are named with "?". */
char *xm_bootstrap_peer_name(const xm_bootstrap_tcp_t *self, int rank, char *buffer, size_t size)
{
    const xm_bootstrap_peer_t *peer = rank < self->peer_count ? &self->peers[rank] : NULL;
    bool own = rank == self->base.rank;
    const char *host = own ? self->host : peer != NULL ? peer->host : NULL;

    (void)snprintf(buffer, size, "rank %d (host %s, pid %d)", rank, host != NULL ? host : "?",
                   own            ? (int)getpid()
                   : peer != NULL ? peer->pid
                                  : 0);
    return buffer;
}

/* Lists the ranks that are missing, the first eight by number: a sentence with a thousand
 * numbers would not be read. */
int xm_bootstrap_list_ranks(const xm_bootstrap_tcp_t *self,
                            bool (*missing)(const xm_bootstrap_peer_t *peer), char *text,
                            size_t size)
{
    size_t used = 0;
    int count = 0;

    text[0] = '\0';
    for (int rank = 1; rank < self->base.size; ++rank) {
        if (!missing(&self->peers[rank])) {
            continue;
        }
        ++count;
        if (count <= LISTED_RANKS && used < size) {
            used += (size_t)snprintf(text + used, size - used, "%s%d", count > 1 ? ", " : "", rank);
        } else if (count == LISTED_RANKS + 1 && used < size) {
            used += (size_t)snprintf(text + used, size - used, " …");
        }
    }
    return count;
}
