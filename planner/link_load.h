/**
 * @file link_load.h
 * What a cross-mesh resharding occupies of the links that hosts share: the NICs of every host it
 * sends from or receives on, and the uplinks of the racks that it leaves and enters.
 *
 * A resharding by itself never needs a link for longer than it takes; two that run at the same time
 * may need one for longer than there is time (pipeline_share.h).
 *
 * Units: seconds.
 */
#ifndef AP_PLANNER_LINK_LOAD_H
#define AP_PLANNER_LINK_LOAD_H

#include <stdbool.h>

enum { AP_LINK_OUT, AP_LINK_IN, AP_LINK_DIRECTIONS };

/** One host's NICs, or one rack's uplink: for how long each direction is busy. */
typedef struct ap_link_load {
    bool rack;                           /**< the uplink of a rack; else the NICs of a host */
    int index;                           /**< of the host or rack */
    double forward[AP_LINK_DIRECTIONS];  /**< by the tensor, from a stage to the next */
    double backward[AP_LINK_DIRECTIONS]; /**< by its gradient, the way back */
} ap_link_load_t;

#endif
