/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/comm/transport/verbs/fake_verbs.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "xm_test.h"

/* RETRIES: moves after which a packet that is not answered is the end of its connection. */
enum { PAIRS = 256, SENDS = XM_VERBS_QUEUE, RECEIVES = 64, ENTRIES = 4096, REGIONS = 4096 };
enum { RETRIES = 60 };

typedef struct {
    struct ibv_send_wr request;
    struct ibv_sge part;
    uint8_t bytes[XM_VERBS_INLINE_MAX]; /* of an inline one */
    bool delivered;                     /* but not answered */
} sending_t;

typedef struct {
    struct ibv_qp base;
    int rank, rail;
    uint32_t other;
    bool used, ready, failed;
    sending_t sends[SENDS];
    struct ibv_recv_wr receives[RECEIVES];
    struct ibv_sge parts[RECEIVES];
    unsigned first_send, send_count, first_receive, receive_count;
    int tries;
} pair_t;

typedef struct {
    struct ibv_cq base;
    struct ibv_wc entries[ENTRIES];
    unsigned first, count;
} queue_t;

typedef struct {
    struct ibv_mr base;
    bool used;
} region_t;

static pair_t pairs[PAIRS];
static region_t regions[REGIONS];
static struct ibv_context contexts[FAKE_RANKS][XM_NICS_MAX];
static fake_way_t ways[FAKE_RANKS][XM_NICS_MAX];
static uint64_t carried[XM_NICS_MAX], state;
static int rail_count;
static int64_t clock_ns = 1;
static _Thread_local int own_rank;

uint64_t fake_verbs_any(uint64_t below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % below;
}

bool fake_verbs_counting;

void fake_verbs_pass(int64_t nanoseconds)
{
    clock_ns += nanoseconds;
}

static int64_t now(const xm_transport_t *transport)
{
    (void)transport;
    return clock_ns;
}

uint64_t fake_verbs_carried(int rail)
{
    return carried[rail];
}

void fake_verbs_set(int rank, int rail, fake_way_t way)
{
    ways[rank][rail] = way;
}

/* ---- completions ---- */

static void complete(struct ibv_cq *cq, const struct ibv_wc *entry)
{
    queue_t *queue = (queue_t *)cq;

    ck_assert_uint_lt(queue->count, ENTRIES);
    queue->entries[(queue->first + queue->count++) % ENTRIES] = *entry;
}

static void pop_send(pair_t *pair, enum ibv_wc_status status)
{
    sending_t *send = &pair->sends[pair->first_send];
    struct ibv_wc entry = {.wr_id = send->request.wr_id,
                           .status = status,
                           .opcode = send->request.opcode == IBV_WR_SEND ? IBV_WC_SEND
                                                                         : IBV_WC_RDMA_WRITE};

    pair->first_send = (pair->first_send + 1) % SENDS;
    --pair->send_count;
    complete(pair->base.send_cq, &entry);
}

static void pop_receive(pair_t *pair, struct ibv_wc entry)
{
    entry.wr_id = pair->receives[pair->first_receive].wr_id;
    pair->first_receive = (pair->first_receive + 1) % RECEIVES;
    --pair->receive_count;
    complete(pair->base.recv_cq, &entry);
}

static void flush(pair_t *pair)
{
    pair->failed = true;
    while (pair->send_count > 0) {
        pop_send(pair, IBV_WC_WR_FLUSH_ERR);
    }
    while (pair->receive_count > 0) {
        pop_receive(pair, (struct ibv_wc){.status = IBV_WC_WR_FLUSH_ERR});
    }
}

/* ---- packets ---- */

static void write_to(uint64_t address, uint32_t key, const void *bytes, size_t length)
{
    const region_t *region = &regions[key % REGIONS];
    uint64_t start = (uintptr_t)region->base.addr;

    ck_assert(key < REGIONS && region->used && address >= start &&
              address + length <= start + region->base.length);
    memcpy((void *)(uintptr_t)address, bytes, length);
}

static void deliver(pair_t *to, sending_t *send)
{
    const struct ibv_send_wr *request = &send->request;
    const void *bytes = (request->send_flags & IBV_SEND_INLINE) != 0
                            ? send->bytes
                            : (const void *)(uintptr_t)send->part.addr;
    size_t length = request->num_sge > 0 ? send->part.length : 0;
    struct ibv_wc entry = {.status = IBV_WC_SUCCESS, .byte_len = (uint32_t)length};

    carried[to->rail] += length;
    if (request->opcode != IBV_WR_SEND && length > 0) {
        write_to(request->wr.rdma.remote_addr, request->wr.rdma.rkey, bytes, length);
    }
    if (request->opcode == IBV_WR_RDMA_WRITE) {
        return;
    }
    ck_assert_uint_gt(to->receive_count, 0);
    if (request->opcode == IBV_WR_SEND) {
        const struct ibv_sge *part = &to->parts[to->first_receive];

        ck_assert_uint_le(length, part->length);
        memcpy((void *)(uintptr_t)part->addr, bytes, length);
        entry.opcode = IBV_WC_RECV;
    } else {
        entry.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
        entry.imm_data = request->imm_data;
    }
    pop_receive(to, entry);
}

void fake_verbs_move(void)
{
    pair_t *from = &pairs[fake_verbs_any(PAIRS)], *to = &pairs[from->other];
    sending_t *send = &from->sends[from->first_send];
    fake_way_t way = ways[from->rank][from->rail];

    if (!from->used || from->failed || from->send_count == 0) {
        return;
    }
    if (way != FAKE_DEAD && to->used && to->ready && !to->failed && !send->delivered) {
        deliver(to, send);
        send->delivered = true;
    }
    if (send->delivered && way == FAKE_WELL) {
        from->tries = 0;
        pop_send(from, IBV_WC_SUCCESS);
    } else if (++from->tries > RETRIES) {
        pop_send(from, IBV_WC_RETRY_EXC_ERR);
        flush(from);
    }
}

/* ---- in libibverbs' place ---- */

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad)
{
    pair_t *pair = (pair_t *)qp;
    sending_t *send = &pair->sends[(pair->first_send + pair->send_count) % SENDS];
    bool counting = fake_verbs_counting;

    fake_verbs_counting = false;
    *bad = request;
    ck_assert(pair->ready);
    ck_assert_uint_lt(pair->send_count, SENDS);
    *send = (sending_t){.request = *request};
    if (request->num_sge > 0) {
        send->part = request->sg_list[0];
    }
    if ((request->send_flags & IBV_SEND_INLINE) != 0) {
        ck_assert_uint_le(send->part.length, sizeof(send->bytes));
        memcpy(send->bytes, (const void *)(uintptr_t)send->part.addr, send->part.length);
    }
    ++pair->send_count;
    if (pair->failed) {
        flush(pair);
    }
    fake_verbs_counting = counting;
    return 0;
}

static int post_receive(struct ibv_qp *qp, struct ibv_recv_wr *request, struct ibv_recv_wr **bad)
{
    pair_t *pair = (pair_t *)qp;
    unsigned at = (pair->first_receive + pair->receive_count) % RECEIVES;
    bool counting = fake_verbs_counting;

    fake_verbs_counting = false;
    *bad = request;
    ck_assert_uint_lt(pair->receive_count, RECEIVES);
    pair->receives[at] = *request;
    pair->parts[at] = request->sg_list[0];
    ++pair->receive_count;
    if (pair->failed) {
        flush(pair);
    }
    fake_verbs_counting = counting;
    return 0;
}

static int poll_queue(struct ibv_cq *cq, int count, struct ibv_wc *entries)
{
    queue_t *queue = (queue_t *)cq;
    int taken = 0;

    for (; taken < count && queue->count > 0; ++taken, --queue->count) {
        entries[taken] = queue->entries[queue->first];
        queue->first = (queue->first + 1) % ENTRIES;
    }
    return taken;
}

struct ibv_cq *__wrap_ibv_create_cq(struct ibv_context *context, int count, void *user,
                                    struct ibv_comp_channel *channel, int vector);
struct ibv_cq *__wrap_ibv_create_cq(struct ibv_context *context, int count, void *user,
                                    struct ibv_comp_channel *channel, int vector)
{
    queue_t *queue = calloc(1, sizeof(*queue));

    (void)user;
    (void)channel;
    (void)vector;
    ck_assert(queue != NULL && count <= ENTRIES);
    queue->base.context = context;
    return &queue->base;
}

struct ibv_qp *__wrap_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *__wrap_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    uint32_t number = 1;

    while (number < PAIRS && pairs[number].used) {
        ++number;
    }
    ck_assert_uint_lt(number, PAIRS);
    pairs[number] = (pair_t){.used = true, .rank = own_rank};
    pairs[number].base = (struct ibv_qp){.context = pd->context,
                                         .qp_context = attr->qp_context,
                                         .send_cq = attr->send_cq,
                                         .recv_cq = attr->recv_cq,
                                         .qp_num = number};
    for (int at = 0; at < FAKE_RANKS * XM_NICS_MAX; ++at) {
        if (pd->context == &contexts[at / XM_NICS_MAX][at % XM_NICS_MAX]) {
            pairs[number].rank = at / XM_NICS_MAX;
            pairs[number].rail = at % XM_NICS_MAX;
        }
    }
    attr->cap.max_inline_data = 128;
    return &pairs[number].base;
}

int __wrap_ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int __wrap_ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    pair_t *pair = (pair_t *)qp;

    (void)mask;
    if (attr->qp_state == IBV_QPS_RTR) {
        pair->other = attr->dest_qp_num;
        pair->ready = true;
    } else if (attr->qp_state == IBV_QPS_ERR) {
        flush(pair);
    }
    return 0;
}

int __wrap_ibv_destroy_qp(struct ibv_qp *qp);
int __wrap_ibv_destroy_qp(struct ibv_qp *qp)
{
    ((pair_t *)qp)->used = false;
    return 0;
}

struct ibv_mr *__wrap_ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access);
struct ibv_mr *__wrap_ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    uint32_t key = 1;

    (void)access;
    while (key < REGIONS && regions[key].used) {
        ++key;
    }
    ck_assert_uint_lt(key, REGIONS);
    regions[key] = (region_t){.used = true,
                              .base = {.context = pd->context,
                                       .pd = pd,
                                       .addr = address,
                                       .length = length,
                                       .lkey = key,
                                       .rkey = key}};
    return &regions[key].base;
}

struct ibv_mr *__wrap_ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length,
                                       uint64_t iova, unsigned int access);
struct ibv_mr *__wrap_ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length,
                                       uint64_t iova, unsigned int access)
{
    (void)iova;
    return __wrap_ibv_reg_mr(pd, address, length, (int)access);
}

int __wrap_ibv_dereg_mr(struct ibv_mr *mr);
int __wrap_ibv_dereg_mr(struct ibv_mr *mr)
{
    ((region_t *)mr)->used = false;
    return 0;
}

int __wrap_ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event);
int __wrap_ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    (void)context;
    (void)event;
    return -1;
}

/* The timer rings whenever somebody looks. */
int __wrap_timerfd_create(int clock, int flags);
int __wrap_timerfd_create(int clock, int flags)
{
    (void)clock;
    (void)flags;
    return eventfd(1u << 30, EFD_CLOEXEC | EFD_SEMAPHORE | EFD_NONBLOCK);
}

/* ---- ports, and a bootstrap of two threads ---- */

xm_status_t __wrap_xm_verbs_ports_open(const char *nics, int rank,
                                       xm_verbs_port_t ports[XM_NICS_MAX], int *count);
xm_status_t __wrap_xm_verbs_ports_open(const char *nics, int rank,
                                       xm_verbs_port_t ports[XM_NICS_MAX], int *count)
{
    (void)nics;
    for (int rail = 0; rail < rail_count; ++rail) {
        struct ibv_context *context = &contexts[rank][rail];
        xm_verbs_port_t *port = &ports[rail];

        *context = (struct ibv_context){
            .async_fd = eventfd(0, EFD_CLOEXEC),
            .ops = {.post_send = post_send, .post_recv = post_receive, .poll_cq = poll_queue}};
        port->offer = (xm_verbs_port_offer_t){.name = {'f', (char)('0' + rail), '\0'},
                                              .rate = 1000000000,
                                              .lid = (uint16_t)(1 + rank),
                                              .infiniband = true,
                                              .mtu = IBV_MTU_1024};
        port->number = 1;
        port->max_message = 1 << 30;
        port->max_cqe = ENTRIES;
        port->context = context;
        port->pd = calloc(1, sizeof(*port->pd));
        port->channel = calloc(1, sizeof(*port->channel));
        ck_assert(port->pd != NULL && port->channel != NULL);
        port->pd->context = context;
        port->channel->fd = eventfd(0, EFD_CLOEXEC);
    }
    *count = rail_count;
    return XM_OK;
}

void __wrap_xm_verbs_ports_close(xm_verbs_port_t *ports, int count);
void __wrap_xm_verbs_ports_close(xm_verbs_port_t *ports, int count)
{
    for (int rail = 0; rail < count; ++rail) {
        (void)close(ports[rail].context->async_fd);
        (void)close(ports[rail].channel->fd);
        free(ports[rail].cq);
        free(ports[rail].channel);
        free(ports[rail].pd);
    }
}

static pthread_barrier_t meeting;
static const void *contributions[FAKE_RANKS];
static size_t lengths[FAKE_RANKS];

int __wrap_xm_bootstrap_rank(const xm_bootstrap_t *bootstrap);
int __wrap_xm_bootstrap_rank(const xm_bootstrap_t *bootstrap)
{
    (void)bootstrap;
    return own_rank;
}

int __wrap_xm_bootstrap_size(const xm_bootstrap_t *bootstrap);
int __wrap_xm_bootstrap_size(const xm_bootstrap_t *bootstrap)
{
    (void)bootstrap;
    return FAKE_RANKS;
}

/* One rank after the other: the devices know nothing of threads. */
xm_status_t __wrap_xm_bootstrap_barrier(xm_bootstrap_t *bootstrap, double timeout);
xm_status_t __wrap_xm_bootstrap_barrier(xm_bootstrap_t *bootstrap, double timeout)
{
    (void)bootstrap;
    (void)timeout;
    return XM_OK;
}

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

xm_status_t __wrap_xm_bootstrap_allgatherv(xm_bootstrap_t *bootstrap, const void *bytes,
                                           size_t length, void **all, size_t **offsets,
                                           double timeout);
xm_status_t __wrap_xm_bootstrap_allgatherv(xm_bootstrap_t *bootstrap, const void *bytes,
                                           size_t length, void **all, size_t **offsets,
                                           double timeout)
{
    uint8_t *gathered;

    (void)bootstrap;
    (void)timeout;
    contributions[own_rank] = bytes;
    lengths[own_rank] = length;
    (void)pthread_mutex_unlock(&turn);
    (void)pthread_barrier_wait(&meeting);
    gathered = malloc(lengths[0] + lengths[1]);
    *offsets = calloc(FAKE_RANKS + 1, sizeof(**offsets));
    ck_assert(gathered != NULL && *offsets != NULL);
    memcpy(gathered, contributions[0], lengths[0]);
    memcpy(gathered + lengths[0], contributions[1], lengths[1]);
    (*offsets)[1] = lengths[0];
    (*offsets)[2] = lengths[0] + lengths[1];
    *all = gathered;
    (void)pthread_barrier_wait(&meeting);
    (void)pthread_mutex_lock(&turn);
    return XM_OK;
}

typedef struct {
    int rank;
    xm_transport_t *transport;
} slot_t;

static void *sit(void *arg)
{
    xm_transport_verbs_params_t params = XM_TRANSPORT_VERBS_PARAMS_INIT;
    slot_t *slot = arg;

    own_rank = slot->rank;
    params.spin = true;
    (void)pthread_mutex_lock(&turn);
    ck_assert_xm_ok(xm_transport_verbs_create(NULL, &params, &slot->transport));
    (void)pthread_mutex_unlock(&turn);
    return NULL;
}

void fake_verbs_open(xm_transport_t *transports[FAKE_RANKS], int rails, uint64_t seed)
{
    static xm_transport_ops_t ops;
    slot_t slots[FAKE_RANKS] = {{.rank = 0}, {.rank = 1}};
    pthread_t thread;

    ops = xm_verbs_ops;
    ops.now = now;

    state = seed;
    rail_count = rails;
    memset(ways, 0, sizeof(ways));
    memset(carried, 0, sizeof(carried));
    ck_assert_int_eq(pthread_barrier_init(&meeting, NULL, FAKE_RANKS), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, sit, &slots[1]), 0);
    (void)sit(&slots[0]);
    (void)pthread_join(thread, NULL);
    (void)pthread_barrier_destroy(&meeting);
    for (int rank = 0; rank < FAKE_RANKS; ++rank) {
        transports[rank] = slots[rank].transport;
        transports[rank]->ops = &ops;
    }
}

void fake_verbs_close(xm_transport_t *transports[FAKE_RANKS])
{
    for (int rank = 0; rank < FAKE_RANKS; ++rank) {
        xm_transport_fence(transports[rank]);
    }
    for (int rank = 0; rank < FAKE_RANKS; ++rank) {
        xm_transport_destroy(transports[rank]);
    }
}
