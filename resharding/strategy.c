#include "resharding/plan_private.h"

#include "comm/text.h"

static const char *const strategy_names[XM_STRATEGY_COUNT] = {"send_recv", "broadcast"};

const char *xm_strategy_name(xm_strategy_t strategy)
{
    return strategy_names[strategy];
}

xm_status_t xm_strategy_parse(const char *name, xm_strategy_t *strategy)
{
    int index;
    xm_status_t status =
        xm_text_choose("strategy", name, strategy_names, XM_STRATEGY_COUNT, &index);

    if (status == XM_OK) {
        *strategy = (xm_strategy_t)index;
    }
    return status;
}

int xm_device_load_pick(const xm_device_load_t *load, const int *ranks, int count, int host)
{
    int best = -1;

    for (int i = 0; i < count; ++i) {
        if (xm_network_host_of(load->network, ranks[i]) == host &&
            (best < 0 || load->sent[ranks[i]] < load->sent[best])) {
            best = ranks[i];
        }
    }
    return best;
}
