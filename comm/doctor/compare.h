/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/doctor/compare.h
 * What differs between the ranks of a job. Internal.
 */
#pragma once

#include "comm/doctor/wire.h"

/** Adds a finding for everything that is compared, of the cards of all ranks, by rank. False: no
 * memory. */
bool xm_doctor_compare(const xm_card_t *cards, int ranks, xm_findings_t *findings);
