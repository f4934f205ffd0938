/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of methods, in the order in which `all` runs them.
 */
#include "bench/peers/method.h"

const rb_peer_method_t *rb_peer_method(int index)
{
    static const rb_peer_method_t *const methods[] = {&rb_peer_alltoallw, &rb_peer_isend,
                                                      &rb_peer_bcast};

    return index < (int)(sizeof(methods) / sizeof(methods[0])) ? methods[index] : NULL;
}
