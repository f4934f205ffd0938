/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What XLA fuses. The rules are those of its instruction fusion that all backends share: loops over
 * elements are taken into their readers, cheap ones into several, and what only gives elements
 * other places is a view. Backends differ in what else they fuse (into products, into scatters);
 * that makes memory less, so leaving it out is on the safe side.
 */

#include "planner/frontend/hlo/rules.h"

static const char *const views[] = {"bitcast", "reshape", "transpose"};

/* Computing these once more costs about as much as storing the result would. */
static const char *const cheap[] = {"abs",          "add",       "and",
                                    "broadcast",    "ceil",      "clamp",
                                    "compare",      "complex",   "concatenate",
                                    "convert",      "copy",      "floor",
                                    "imag",         "is-finite", "maximum",
                                    "minimum",      "multiply",  "negate",
                                    "not",          "or",        "pad",
                                    "popcnt",       "real",      "reduce-precision",
                                    "reverse",      "select",    "shift-left",
                                    "sign",         "slice",     "shift-right-arithmetic",
                                    "subtract",     "xor",       "shift-right-logical",
                                    "dynamic-slice"};

/* These are not cheap, but loops over elements all the same. */
static const char *const dear[] = {"atan2",
                                   "cbrt",
                                   "cosine",
                                   "divide",
                                   "erf",
                                   "exponential",
                                   "exponential-minus-one",
                                   "gather",
                                   "log",
                                   "logistic",
                                   "power",
                                   "rsqrt",
                                   "log-plus-one",
                                   "remainder",
                                   "sine",
                                   "round-nearest-afz",
                                   "round-nearest-even",
                                   "sqrt",
                                   "tan",
                                   "tanh"};

static bool is_in(hlo_slice_t opcode, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        if (hlo_slice_is(opcode, names[i])) {
            return true;
        }
    }
    return false;
}

ap_fusion_t hlo_fusion(hlo_slice_t opcode)
{
    return is_in(opcode, views, sizeof(views) / sizeof(views[0]))   ? AP_FUSION_VIEW
           : is_in(opcode, cheap, sizeof(cheap) / sizeof(cheap[0])) ? AP_FUSION_ANYWHERE
           : is_in(opcode, dear, sizeof(dear) / sizeof(dear[0]))    ? AP_FUSION_ONCE
                                                                    : AP_FUSION_NEVER;
}
