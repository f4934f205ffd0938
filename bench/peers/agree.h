/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file agree.h
 * Agreement of all ranks of MPI_COMM_WORLD on whether something went well.
 */
#pragma once

#include "comm/base.h"

/**
 * Collective: every rank gives what it got. When all got XM_OK so is the result. Otherwise it is,
 * on every rank, the failure of the lowest rank that has one, with that rank's sentence.
 */
xm_status_t rb_peer_agree(xm_status_t mine);
