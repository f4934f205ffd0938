/* SPDX-License-Identifier: Apache-2.0 */
/* Inside, the profile of the public headers is comm's: both names are of one structure, so that no
 * pointer needs a cast. Comes before every public header that names it. */
#pragma once

#include "comm/profile.h"

#define ap_profile xm_cluster_profile

#include <autopar/profile.h>
