/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cuda_transport.h
 * Makes any transport one that takes device memory, as a UCX with CUDA does: messages from and to a
 * device go by way of the host.
 */
#pragma once

#include "comm/memory/memory.h"
#include "comm/transport/transport.h"

/* Wraps *transport, which is destroyed with the wrapper. The space must outlive it. */
void cuda_transport_wrap(xm_memory_space_t *space, xm_transport_t **transport);

/* Messages that a wrapper had from or to a device. */
int64_t cuda_transport_messages(const xm_transport_t *transport);
