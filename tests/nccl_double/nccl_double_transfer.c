/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes between ranks, through the rings of the shared file. */
#include <string.h>
#include <unistd.h>

#include "tests/nccl_double/nccl_double.h"

void nccl_double_add(nccl_exchange_t *exchange, int peer, bool send, const void *at, size_t bytes)
{
    exchange->transfers[exchange->count++] =
        (nccl_transfer_t){.peer = peer, .send = send, .at = (char *)at, .left = bytes};
}

static size_t least(size_t a, size_t b, size_t c)
{
    a = a < b ? a : b;
    return a < c ? a : c;
}

/* Moves what fits. */
static bool move(nccl_comm_t *comm, nccl_transfer_t *transfer)
{
    nccl_slot_t *slot = transfer->send ? &comm->shared->slots[comm->rank][transfer->peer]
                                       : &comm->shared->slots[transfer->peer][comm->rank];
    size_t written = atomic_load(&slot->written), read = atomic_load(&slot->read);
    size_t at = (transfer->send ? written : read) % NCCL_DOUBLE_SLOT;
    size_t room = transfer->send ? NCCL_DOUBLE_SLOT - (written - read) : written - read;
    size_t bytes = least(transfer->left, room, NCCL_DOUBLE_SLOT - at);

    if (bytes == 0) {
        return false;
    }
    if (transfer->send) {
        memcpy(slot->bytes + at, transfer->at, bytes);
        atomic_store(&slot->written, written + bytes);
    } else {
        memcpy(transfer->at, slot->bytes + at, bytes);
        atomic_store(&slot->read, read + bytes);
    }
    transfer->at += bytes;
    transfer->left -= bytes;
    return true;
}

/* Transfers of the same peer and direction come one after the other. */
static bool is_first(const nccl_exchange_t *exchange, int index)
{
    const nccl_transfer_t *own = &exchange->transfers[index];

    for (int i = 0; i < index; ++i) {
        const nccl_transfer_t *other = &exchange->transfers[i];

        if (other->left > 0 && other->peer == own->peer && other->send == own->send) {
            return false;
        }
    }
    return true;
}

bool nccl_double_run(nccl_comm_t *comm, nccl_exchange_t *exchange)
{
    bool done = false;

    while (!done) {
        bool moved = false;

        if (atomic_load(&comm->aborted)) {
            return false;
        }
        done = true;
        for (int i = 0; i < exchange->count; ++i) {
            nccl_transfer_t *transfer = &exchange->transfers[i];

            if (transfer->left > 0) {
                moved = (is_first(exchange, i) && move(comm, transfer)) || moved;
                done = done && transfer->left == 0;
            }
        }
        if (!done && !moved) {
            (void)usleep(20);
        }
    }
    return true;
}
