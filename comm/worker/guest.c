/* SPDX-License-Identifier: Apache-2.0 */
/* The list of a worker's guests. */
#include "comm/worker/guest.h"

#include "comm/worker/worker_private.h"

void xm_worker_add_guest(xm_worker_t *worker, xm_worker_guest_t *guest)
{
    guest->next = worker->guests;
    guest->link = &worker->guests;
    if (guest->next != NULL) {
        guest->next->link = &guest->next;
    }
    worker->guests = guest;
}

void xm_worker_remove_guest(xm_worker_guest_t *guest)
{
    if (guest->link == NULL) {
        return;
    }
    *guest->link = guest->next;
    if (guest->next != NULL) {
        guest->next->link = guest->link;
    }
    guest->link = NULL;
}

bool xm_worker_advance_guests(xm_worker_t *worker)
{
    bool busy = false;

    for (xm_worker_guest_t *guest = worker->guests; guest != NULL; guest = guest->next) {
        busy = guest->advance(guest) || busy;
    }
    return busy;
}

bool xm_worker_has_failed(const xm_worker_t *worker)
{
    return worker->fault_status < 0;
}

void xm_worker_dismiss_guests(xm_worker_t *worker)
{
    while (worker->guests != NULL) {
        xm_worker_guest_t *guest = worker->guests;

        xm_worker_remove_guest(guest);
        guest->leave(guest);
    }
}
