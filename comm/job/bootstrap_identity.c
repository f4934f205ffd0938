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

/* A sentence with a thousand numbers would not be read. */
void xm_bootstrap_list_rank(char *text, size_t size, int rank, int *count)
{
    if (++*count <= LISTED_RANKS) {
        xm_text_list_add(text, size, ", ", "%d", rank);
    } else if (*count == LISTED_RANKS + 1) {
        xm_text_list_add(text, size, " ", "…");
    }
}

int xm_bootstrap_list_ranks(const xm_bootstrap_tcp_t *self,
                            bool (*missing)(const xm_bootstrap_peer_t *peer), char *text,
                            size_t size)
{
    int count = 0;

    text[0] = '\0';
    for (int rank = 1; rank < self->base.size; ++rank) {
        if (missing(&self->peers[rank])) {
            xm_bootstrap_list_rank(text, size, rank, &count);
        }
    }
    return count;
}

/* It fails only where there are no random bytes. */
xm_status_t xm_bootstrap_challenge(xm_bootstrap_link_t *link, int fd, int epoll, uint64_t key,
                                   const xm_job_secret_t *secret, uint8_t nonce[XM_JOB_NONCE_SIZE])
{
    xm_bootstrap_challenge_t words = {.secret = secret->length > 0};
    uint8_t bytes[XM_BOOTSTRAP_CHALLENGE_SIZE];
    xm_status_t status = xm_job_secret_random(nonce, XM_JOB_NONCE_SIZE);

    if (status < 0) {
        (void)close(fd);
        return status;
    }
    if (xm_bootstrap_link_open(link, fd, epoll, key) < 0) {
        return XM_OK; /* it has gone again */
    }
    link->expected = 1u << XM_BOOTSTRAP_HELLO;
    memcpy(words.nonce, nonce, sizeof(words.nonce));
    xm_bootstrap_challenge_encode(&words, bytes);
    xm_bootstrap_link_send(link, XM_BOOTSTRAP_CHALLENGE, 0, bytes, sizeof(bytes));
    return XM_OK;
}

/* Compares in constant time. */
bool xm_bootstrap_is_proven(const xm_job_secret_t *secret, const uint8_t nonce[XM_JOB_NONCE_SIZE],
                            const xm_bootstrap_hello_t *hello)
{
    uint8_t proof[XM_JOB_PROOF_SIZE];

    xm_bootstrap_prove(secret, "rank", hello->nonce, nonce, &hello->identity, proof);
    return xm_job_secret_equal(proof, hello->proof);
}
