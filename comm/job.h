/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file job.h
 * The face of comm/job/: other rooms include this header and none of the folder. How the ranks of a
 * job meet: their own launcher, TCP rendezvous, PMIx or a table of the caller's; allgather and
 * barrier until they part.
 */
#pragma once

#include "comm/job/bootstrap.h"
#include "comm/job/bootstrap_listen.h"
#include "comm/job/bootstrap_private.h"
#include "comm/job/bootstrap_tcp.h"
#include "comm/job/bootstrap_wire.h"
#include "comm/job/job_secret.h"
#include "comm/job/launcher.h"
#include "comm/job/resolve.h"
