/* Plans a model for a measured cluster: plan CLUSTER.json [MODEL] */
#include <autopar/plan.h>
#include <autopar/planner.h>
#include <autopar/profile.h>

#include <stdio.h>

static int fail(void)
{
    fprintf(stderr, "%s\n", ap_last_error());
    return 1;
}

static void print(const ap_plan_t *plan)
{
    printf("step %.3g s\n", ap_plan_info(plan)->step);
    for (int i = 0; i < ap_plan_stages(plan); i++) {
        const ap_plan_stage_t *stage = ap_plan_stage(plan, i);

        printf("stage %d: layers %d-%d on %d x %d devices\n", i, stage->first_layer,
               stage->last_layer, stage->shape[0], stage->shape[1]);
    }
}

int main(int argc, char **argv)
{
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_profile_t *profile = NULL;
    ap_plan_t *plan = NULL;

    if (argc < 2) {
        fprintf(stderr, "usage: plan CLUSTER.json [MODEL]\n");
        return 2;
    }
    if (ap_profile_load(argv[1], &profile) != XM_OK) {
        return fail();
    }
    params.model = argc > 2 ? argv[2] : "gpt-1.3b";
    params.profile = profile;
    params.min_stages = 2;
    if (ap_planner_plan(&params, &plan, NULL) != XM_OK) {
        ap_profile_destroy(profile);
        return fail();
    }
    print(plan);
    ap_plan_destroy(plan);
    ap_profile_destroy(profile);
    return 0;
}
