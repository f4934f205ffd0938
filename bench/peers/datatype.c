/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box of a tile as an MPI type. Subarrays are what users of MPI describe such boxes
 * with, and leave it to the library how to pack them.
 */
#include "bench/peers/datatype.h"

/* Makes a committed type, which the caller frees. The extents fit an int:
 * rb_peer_slot_create() has seen to it. */
static MPI_Datatype box_type(const xm_box_t *tile, const xm_box_t *box, int64_t element_size)
{
    int sizes[XM_MAX_DIMS], lengths[XM_MAX_DIMS], starts[XM_MAX_DIMS];
    MPI_Datatype element, type;

    MPI_Type_contiguous((int)element_size, MPI_BYTE, &element);
    for (int d = 0; d < box->dims; ++d) {
        sizes[d] = (int)(tile->hi[d] - tile->lo[d]);
        lengths[d] = (int)(box->hi[d] - box->lo[d]);
        starts[d] = (int)(box->lo[d] - tile->lo[d]);
    }
    /* MPI knows no subarray of no dimensions. */
    if (box->dims == 0) {
        MPI_Type_dup(element, &type);
    } else {
        MPI_Type_create_subarray(box->dims, sizes, lengths, starts, MPI_ORDER_C, element, &type);
    }
    MPI_Type_free(&element);
    MPI_Type_commit(&type);
    return type;
}

MPI_Datatype rb_peer_datatype_src(const rb_peer_slot_t *slot, const xm_box_t *box)
{
    return box_type(&slot->src_box, box, slot->one->element_size);
}

MPI_Datatype rb_peer_datatype_dst(const rb_peer_slot_t *slot, const xm_box_t *box)
{
    return box_type(&slot->dst_box, box, slot->one->element_size);
}
