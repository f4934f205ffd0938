/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file convert.h
 * Gives the elements of a tile a narrower type, or the wider one back: bfloat16, or 8 bits with a
 * scale for each block.
 *
 * Wide elements are float32 or bfloat16. A *kind* says what they become:
 *  - bfloat16, rounded to the nearest, ties to even; from float32 only;
 *  - fp8 blocks: e4m3 with a float32 scale for each 128 × 128 elements, as DeepSeek's and vLLM's
 *    `weight_scale_inv` have it: scale = max(largest absolute value, 0.0001) / 448, and an element
 *    is the nearest of value × (1 / scale);
 *  - MXFP8: e4m3 with a power of two for each 32 elements of a row, as the byte that E8M0 has for
 *    it: the least with which no element exceeds 448;
 *  - int8 rows: −127 … 127 with a float32 scale for each row: largest absolute value / 127, at
 *    least 2⁻²³.
 *
 * A row of a tensor with one dimension is all of it; of one with more than two, the last two are
 * rows and columns, and each matrix is converted by itself. A narrow element times its scale is the
 * wide one again. A NaN makes the scale and with it its whole block NaN; an infinity makes an fp8
 * or int8 block's scale infinite, and its elements NaN or 0, so that neither is overlooked.
 *
 * A scale is that of a block of the *tensor*, and a tile may have only a part of the block. So a
 * conversion has three steps, and between the first and the second ranks that share a block agree
 * on its maximum: the largest of theirs. What a rank converts does then not depend on where its
 * tile ends.
 *
 * @code
 *     // A whole matrix of bfloat16, with room for its scales; maxima are 0.
 *     xm_status_t to_fp8(void *weights, int64_t rows, int64_t columns, void *fp8, float *maxima,
 *                        float *scale_inv)
 *     {
 *         xm_convert_params_t params = XM_CONVERT_PARAMS_INIT;
 *         xm_status_t status;
 *
 *         params.kind = XM_CONVERT_FP8_BLOCKS;
 *         params.rows = rows;
 *         params.columns = params.wide_stride = params.narrow_stride = columns;
 *         params.scale_stride = (columns + 127) / 128;
 *         params.wide = weights;
 *         params.narrow = fp8;
 *         params.maxima = maxima;
 *         params.scales = scale_inv;
 *         status = xm_convert(&params, XM_CONVERT_MAXIMA);
 *         if (status == XM_OK) {
 *             status = xm_convert(&params, XM_CONVERT_SCALES);
 *         }
 *         return status == XM_OK ? xm_convert(&params, XM_CONVERT_NARROW) : status;
 *     }
 * @endcode
 *
 * Threads: no state; calls for parts of a tile may run at once, except that of XM_CONVERT_MAXIMA
 * no two may share a block. Source: OCP Microscaling Formats 1.0 for E8M0 and its blocks; the scale
 * is rounded up, as NVIDIA's recipe for MXFP8 does.
 */
#ifndef CROSSMESH_CONVERT_H
#define CROSSMESH_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include <crossmesh/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What wide elements become, see above. */
typedef enum xm_convert_kind {
    XM_CONVERT_BFLOAT16,
    XM_CONVERT_FP8_BLOCKS,
    XM_CONVERT_MXFP8,
    XM_CONVERT_INT8_ROWS,
    XM_CONVERT_KINDS /**< how many there are */
} xm_convert_kind_t;

/** What a call does. XM_CONVERT_BFLOAT16 has only the last two. */
typedef enum xm_convert_step {
    XM_CONVERT_MAXIMA, /**< raises the blocks' maxima to the largest absolute values in the tile */
    XM_CONVERT_SCALES, /**< the scales of the blocks that the tile touches, from their maxima */
    XM_CONVERT_NARROW, /**< narrow elements of wide ones and scales */
    XM_CONVERT_WIDEN   /**< wide elements of narrow ones and scales */
} xm_convert_step_t;

/** A tile and its blocks. Start from ::XM_CONVERT_PARAMS_INIT; what a step has no use for may be
 * missing. Strides are from one row to the next, in elements and in scales. */
typedef struct xm_convert_params {
    size_t struct_size; /**< sizeof(xm_convert_params_t) */
    xm_convert_kind_t kind;
    bool float32;          /**< wide elements are float32, else bfloat16 */
    int64_t rows, columns; /**< of the tile */
    int64_t row, column;   /**< where in the tensor its first element is */
    int64_t wide_stride, narrow_stride, scale_stride;
    void *wide, *narrow;
    /** Of the whole tensor's blocks, row-major: the tile's are found by its place. Maxima are
     * float, 0 or above, or NaN; scales are float or, for MXFP8, uint8_t. */
    void *maxima, *scales;
} xm_convert_params_t;

/** Initialiser of an ::xm_convert_params_t. */
#define XM_CONVERT_PARAMS_INIT                                                                     \
    {                                                                                              \
        sizeof(xm_convert_params_t), XM_CONVERT_BFLOAT16, false, 0, 0, 0, 0, 0, 0, 0, NULL, NULL,  \
            NULL, NULL                                                                             \
    }

/** Does one step for one tile, in the memory that the parameters name. */
XM_API xm_status_t xm_convert(const xm_convert_params_t *params, xm_convert_step_t step);

#ifdef __cplusplus
}
#endif

#endif
