#include "resharding/plan_private.h"

#include "comm/text.h"

static const char *const scheduler_names[XM_SCHEDULER_COUNT] = {"naive", "balance"};

const char *xm_scheduler_name(xm_scheduler_t scheduler)
{
    return scheduler_names[scheduler];
}

xm_status_t xm_scheduler_parse(const char *name, xm_scheduler_t *scheduler)
{
    int index;
    xm_status_t status =
        xm_text_choose("scheduler", name, scheduler_names, XM_SCHEDULER_COUNT, &index);

    if (status == XM_OK) {
        *scheduler = (xm_scheduler_t)index;
    }
    return status;
}
