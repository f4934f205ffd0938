/* SPDX-License-Identifier: Apache-2.0 */
/* What UCX's active messages are to rails: lanes that copy, and lanes that fetch. A frame is the
 * header of a message. Where lanes copy it is always eager: UCX holds a reference to the packet,
 * never to the user's memory; pack() reads the bytes when UCX has room, and reads zeros if the
 * message has ended meanwhile. (On TCP that is no copy more than before: UCX copies to and from its
 * segments anyway.) Where they fetch the bytes of a chunk go by a rendezvous of UCX, so both ends
 * wait until UCX has let go of them. The handler runs inside ucp_worker_progress(). One for all
 * peers is registered on each worker, because UCX's active messages do not tell the sender: the
 * frame does. */
#include <string.h>

#include "comm/transport/ucx/transport_ucx_private.h"

/* The datatype of a packet's bytes. UCX asks for them when it has room, which for a rail that
 * is gone may be never, or long after their owner has freed them. The last byte tells the
 * receiver whether all others were what they should be: it is 1 if the bytes were still there
 * at the end. */

static void *start_pack(void *context, const void *packet, size_t count)
{
    (void)context;
    (void)count;
    return (void *)(uintptr_t)packet;
}

static void *start_unpack(void *context, void *buffer, size_t count)
{
    (void)context;
    (void)count;
    return buffer; /* never: receivers get the bytes as they are */
}

static size_t packed_size(void *state)
{
    return ((const xm_rails_packet_t *)state)->length + 1;
}

/* Copies what UCX has room for. It may be called several times for one packet; if the message
 * ends between two calls, the last byte stays 0 and the receiver drops everything. */
static size_t pack(void *state, size_t offset, void *bytes, size_t room)
{
    const xm_rails_packet_t *packet = state;
    size_t left = packet->length + 1 - offset;
    size_t size = room < left ? room : left, copied = size - (size == left);

    /* Nobody wants these bytes any more, and their buffer may be gone; UCX still expects the
     * length that it was promised. */
    if (packet->bytes == NULL) {
        memset(bytes, 0, size);
        return size;
    }
    memcpy(bytes, packet->bytes + offset, copied);
    if (size == left) {
        ((uint8_t *)bytes)[copied] = 1;
    }
    return size;
}

static ucs_status_t unpack(void *state, size_t offset, const void *bytes, size_t length)
{
    (void)state;
    (void)offset;
    (void)bytes;
    (void)length;
    return UCS_OK;
}

static void finish(void *state)
{
    (void)state;
}

static const ucp_generic_dt_ops_t packet_ops = {.start_pack = start_pack,
                                                .start_unpack = start_unpack,
                                                .packed_size = packed_size,
                                                .pack = pack,
                                                .unpack = unpack,
                                                .finish = finish};

/* Chunks are what lanes fetch; everything else is copied, as it is short. */
static bool is_fetched(const xm_rails_packet_t *packet)
{
    return packet->frame.kind == XM_RAILS_FRAME_CHUNK && packet->rails->way == XM_RAILS_FETCH;
}

/* UCX has let go of a packet. */
static void let_go(xm_rails_packet_t *packet, bool sent)
{
    bool *joined = &packet->rails->lanes[packet->lane].joined;

    ((xm_ucx_peer_t *)packet->rails->peer)->lanes[packet->lane].held -= is_fetched(packet);
    *joined = *joined || (sent && !packet->stale);
    xm_rails_sent(packet, sent);
}

/* An error of one packet is an error of its lane. */
static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    xm_rails_packet_t *packet = user_data;
    xm_rails_t *rails = packet->rails;

    ucp_request_free(request);
    if (status != UCS_OK && !packet->stale) {
        xm_rails_broken(rails->peer, packet->lane, "%s", ucs_status_string(status));
    } else if (packet->length > 0 && !packet->stale) {
        xm_rails_moved(rails, packet->lane);
    }
    let_go(packet, status == UCS_OK);
    xm_rails_set_due(rails);
}

/* The frame is encoded only now, so that it carries the newest lives of the rails. */
static void post(xm_rails_peer_t *peer, int lane, xm_rails_packet_t *packet)
{
    xm_ucx_peer_t *to = (xm_ucx_peer_t *)peer;
    const void *bytes = packet->length > 0 ? packet : NULL;
    size_t length = packet->length > 0 ? packet->length + 1 : 0;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_EAGER,
                                 .cb.send = on_sent,
                                 .user_data = packet};
    ucs_status_ptr_t request;

    packet->frame.sender = peer->owner->base.rank;
    memcpy(packet->frame.life, peer->rails->life, sizeof(packet->frame.life));
    xm_rails_frame_encode(&packet->frame, packet->head);
    if (is_fetched(packet)) {
        param.flags = UCP_AM_SEND_FLAG_RNDV;
        bytes = packet->bytes;
        length = packet->length;
        ++to->lanes[lane].held;
    } else if (length > 0) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
        param.datatype = xm_ucx_owner(to)->packet_type;
    }
    request = ucp_am_send_nbx(to->lanes[lane].ep, XM_UCX_AM_FRAME, packet->head,
                              XM_RAILS_FRAME_SIZE, bytes, length, &param);
    if (UCS_PTR_IS_ERR(request)) {
        xm_rails_broken(peer, lane, "%s", ucs_status_string(UCS_PTR_STATUS(request)));
    }
    /* UCX completes small frames inside the call and returns no request; on_sent() is then never
     * called. */
    if (request == NULL || UCS_PTR_IS_ERR(request)) {
        let_go(packet, request == NULL);
    }
}

/* UCX has brought a chunk, or never will. */
static void fetched(xm_rails_fetch_t *fetch, ucs_status_t status)
{
    xm_ucx_peer_t *peer = (xm_ucx_peer_t *)fetch->rails->peer;

    --peer->lanes[fetch->lane].held;
    xm_rails_fetched(fetch, status == UCS_OK ? NULL : ucs_status_string(status));
}

static void on_fetched(void *request, ucs_status_t status, size_t length, void *user_data)
{
    (void)length;
    ucp_request_free(request);
    fetched(user_data, status);
}

static void fetch_chunk(xm_rails_peer_t *peer, int lane, const void *bytes, void *to,
                        xm_rails_fetch_t *fetch)
{
    xm_ucx_peer_t *from = (xm_ucx_peer_t *)peer;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                                 .cb.recv_am = on_fetched,
                                 .user_data = fetch};
    ucs_status_ptr_t request;

    ++from->lanes[lane].held;
    request = ucp_am_recv_data_nbx(xm_ucx_rail_of(from, lane)->worker, (void *)(uintptr_t)bytes, to,
                                   fetch->length, &param);
    if (UCS_PTR_IS_ERR(request)) {
        fetched(fetch, UCS_PTR_STATUS(request));
    }
}

static bool join(xm_rails_peer_t *peer)
{
    bool joined = xm_ucx_connect((xm_ucx_peer_t *)peer) == XM_OK;

    if (!joined) {
        xm_rails_report(peer, "its connection failed (%s)", ucs_status_string(UCS_ERR_UNREACHABLE));
    } else if (peer->rails->way == XM_RAILS_FETCH) {
        xm_rails_failover_ping(peer->rails); /* what passes shows that a lane is joined */
    }
    return joined;
}

/* Nothing can pass while this rank's own NIC is down; and a rank that has lost the lane only
 * because its peer said so leaves it to the peer, which knows better, to make a new connection. */
static bool attempt(xm_rails_peer_t *peer, int lane)
{
    const xm_ucx_peer_t *to = (const xm_ucx_peer_t *)peer;

    return (xm_ucx_owner(to)->watch.down >> lane & 1) == 0 &&
           (to->lanes[lane].ep != NULL || !peer->rails->lanes[lane].learnt);
}

static bool ready(xm_rails_peer_t *peer, int lane)
{
    return xm_ucx_connect_lane((xm_ucx_peer_t *)peer, lane) == UCS_OK;
}

static void retire(xm_rails_peer_t *peer, int lane)
{
    xm_ucx_retire_lane((xm_ucx_peer_t *)peer, lane);
}

static unsigned down(xm_rails_transport_t *transport)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;

    (void)xm_nic_watch_read(&self->watch, &self->nics);
    return self->watch.down;
}

const xm_rails_lanes_t xm_ucx_lanes = {.post = post,
                                       .connect = join,
                                       .attempt = attempt,
                                       .ready = ready,
                                       .retire = retire,
                                       .down = down,
                                       .fetch = fetch_chunk};

/* Whether the bytes of a frame are what they should be: those of chunks that are fetched are still
 * to come, and of others the last one says that the sender still had them all when UCX packed
 * them. */
static bool is_whole(const xm_rails_t *rails, const xm_rails_frame_t *frame, const uint8_t *bytes,
                     size_t length, bool announced)
{
    bool fetched = rails->way == XM_RAILS_FETCH && frame->kind == XM_RAILS_FRAME_CHUNK;

    return fetched == announced && (fetched || length == 0 || bytes[length - 1] == 1);
}

/* Handles one frame; UCX keeps nothing of it afterwards but what is fetched, so bytes that are
 * needed later are copied. Frames that make no sense, or come from ranks without rails, are
 * dropped: nothing of theirs can be trusted enough to blame a peer for it. */
static ucs_status_t on_frame(void *arg, const void *header, size_t header_length, void *data,
                             size_t length, const ucp_am_recv_param_t *param)
{
    xm_ucx_listener_t *listener = arg;
    xm_ucx_transport_t *self = listener->transport;
    const uint8_t *bytes = data;
    xm_rails_frame_t frame;
    xm_ucx_peer_t *peer;
    bool announced;

    if (xm_rails_frame_decode(header, header_length, &frame) < 0 ||
        frame.sender >= self->base.base.size || self->peers[frame.sender].base.rails == NULL) {
        return UCS_OK;
    }
    peer = &self->peers[frame.sender];
    announced = param != NULL && (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    if (is_whole(peer->base.rails, &frame, bytes, length, announced)) {
        xm_rails_hear(&peer->base, listener->rail - peer->rail, &frame, bytes,
                      length > 0 && !announced ? length - 1 : length);
    }
    return UCS_OK;
}

/* Registers the handler with the worker of one rail. WHOLE_MSG has UCX assemble the frame
 * first, so that the handler sees it once and completely. */
xm_status_t xm_ucx_listen(xm_ucx_transport_t *self, int rail)
{
    xm_ucx_listener_t *listener = &self->listeners[rail];
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = XM_UCX_AM_FRAME,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = on_frame,
        .arg = listener};
    ucs_status_t status = UCS_OK;

    *listener = (xm_ucx_listener_t){.transport = self, .rail = rail};
    /* The datatype is made by whoever comes first; it belongs to the transport and not to a
     * rail. */
    if (!self->has_packet_type) {
        status = ucp_dt_create_generic(&packet_ops, NULL, &self->packet_type);
        self->has_packet_type = status == UCS_OK;
    }
    if (status == UCS_OK) {
        status = ucp_worker_set_am_recv_handler(self->rails[rail].worker, &param);
    }
    return status == UCS_OK
               ? XM_OK
               : XM_UNSUPPORTED("rank %d: UCX has no active messages for %s: %s",
                                self->base.base.rank, self->nics.nic[rail - XM_UCX_RAIL_NIC].device,
                                ucs_status_string(status));
}
