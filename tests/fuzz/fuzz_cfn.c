/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: the reader refuses them with a sentence, or makes a problem that the solver solves:
 * within the limit, at no less than the bound, or says that there is no solution. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/network/read.h"
#include "planner/solver/solve.h"

enum { NODES_MAX = 64, CELLS_MAX = 20000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ap_cfn_options_t options = AP_CFN_OPTIONS_INIT;
    ap_cfn_result_t result;
    ap_cfn_t *cfn = NULL;
    int choice[NODES_MAX + 1];
    xm_status_t status;

    if (ap_cfn_read_text((const char *)data, size, &cfn) < 0) {
        if (cfn != NULL || xm_last_error()[0] == '\0') {
            abort();
        }
        return 0;
    }
    if (cfn->nodes <= NODES_MAX && cfn->cell_at[cfn->edges] <= CELLS_MAX) {
        options.seconds = 0.2;
        options.threads = 1;
        status = ap_cfn_solve(cfn, &options, choice, &result);
        if (status == XM_OK && (!result.value.feasible || result.value.infinite > 0 ||
                                result.bound > (double)result.value.cost * (1.0 + 1e-9) + 0.01)) {
            abort();
        }
        if (status < 0 && status != XM_ERR_NO_SOLUTION && status != XM_ERR_TIMEOUT) {
            abort();
        }
    }
    ap_cfn_destroy(cfn);
    return 0;
}
