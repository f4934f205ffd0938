/* SPDX-License-Identifier: Apache-2.0 */
/* One rail: a UCX context restricted to one kind of path or one device, and its worker. A
 * context for each NIC is needed because UCX's own multi-rail counts every TCP address as
 * reachable from every interface (docs/transport.md), and because a rail that is lost must be
 * separable from the others. Settings for it are made here where the environment leaves them
 * open: most of them work round behaviour of UCX 1.13 when peers die. UCX has no interface that
 * tells its choices, so devices and protocols are read from the reports it prints. */
#include "comm/transport/ucx/rail.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/transport/ucx/ucx.h"

typedef struct {
    const char *variable; /* what a user sets */
    const char *name;     /* what ucp_config_modify() of UCX 1.13 calls it: transports leave their
                             prefix out */
    const char *value;
    const char *users; /* words of UCX_TLS for the transports that read it; NULL: UCX itself */
} setting_t;

#define SHARED_MEMORY_WORDS "sm,shm,mm,sysv,posix,xpmem"
#define SHARED_MEMORY       "all," SHARED_MEMORY_WORDS
#define TCP                 "all,tcp"

/* Needed to notice dead peers soon; the environment overrides. */
static const setting_t settings[] = {
    {"UCX_MM_ERROR_HANDLING", "MM_ERROR_HANDLING", "y", SHARED_MEMORY},
    {"UCX_KEEPALIVE_INTERVAL", "KEEPALIVE_INTERVAL", "1s", NULL},
    {"UCX_TCP_KEEPIDLE", "KEEPIDLE", "1s", TCP},
    {"UCX_TCP_KEEPINTVL", "KEEPINTVL", "1s", TCP},
    {"UCX_TCP_KEEPCNT", "KEEPCNT", "3", TCP},
    /* A survivor is aborted by an assertion of UCX 1.13's TCP put (tcp_ep.c, PUT_TX_WAITING_ACK)
     * when its peer dies between a put and its acknowledgement. Active messages carry the same
     * bytes. */
    {"UCX_TCP_PUT_ENABLE", "PUT_ENABLE", "n", TCP},
    /* A rank answers a connection that its dead peer had opened, or opens one to it: the send
     * fails, and so does the connection that UCX 1.13 then tries instead, if it waits for it. It
     * schedules the endpoint's end before it counts it as one that sends, and aborts over that
     * (tcp_ep.c, CTX_TYPE_TX). A connection that is not waited for fails later, when it counts. Nor
     * does a rank stand still while a host that is gone does not answer. */
    {"UCX_TCP_CONN_NB", "CONN_NB", "y", TCP},
    /* What a peer's death does to one endpoint can close another, whose event UCX 1.13 has taken
     * from the kernel already; that event aborts the process (tcp_iface.c, CONN_STATE_CLOSED). So
     * events are taken one at a time. */
    {"UCX_TCP_MAX_POLL", "MAX_POLL", "1", TCP},
};

/*
 * Where all is TCP. When a peer dies while UCX 1.13 sends from the user's memory over TCP, an
 * assertion aborts the survivor (comp->count > 0); on a busy machine nearly always. So nothing is
 * sent from there; and whole chunks go by one system call, which more than makes up for the copy:
 * between two ranks over unshaped virtual NICs 1.3 instead of 1.0 GB/s, 1.0 instead of 1.3 s of
 * processor time a GB. The segments are pooled, and held only while a message passes. UCX takes all
 * that fits into one for a short message; that large ones do not complete before their receive is
 * posted is for post.c to see to.
 */
static const setting_t tcp_only_settings[] = {
    {"UCX_ZCOPY_THRESH", "ZCOPY_THRESH", "inf", NULL},
    {"UCX_TCP_TX_SEG_SIZE", "TX_SEG_SIZE", "1m", NULL},
    {"UCX_TCP_RX_SEG_SIZE", "RX_SEG_SIZE", "1m", NULL},
};

/* Of RDMA devices that stand in for each other. A connection is set up by datagrams (ud). One that
 * nobody answers has a time limit, at whose end an assertion of UCX 1.13 aborts the process
 * (ucp_request.c, "got REQ message"): a rail that is lost must be able to wait for its cable for as
 * long as it takes. */
static const setting_t rdma_settings[] = {
    {"UCX_UD_TIMEOUT", "UD_TIMEOUT", "1000000s",
     "all,ib,rc,rc_v,rc_verbs,rc_x,rc_mlx5,ud,ud_v,ud_verbs"},
};

/* A setting that UCX does not know is an error, not a warning: each is there to avoid a hang or
 * an abort. Later versions than 1.13 refuse the short name of a transport's, and take the whole
 * one, which 1.13 takes and heeds as little as any other word. */
static xm_status_t modify(ucp_config_t *config, const char *name, const char *value,
                          const char *whole_name)
{
    ucs_status_t status = ucp_config_modify(config, name, value);

    if (status == UCS_ERR_INVALID_PARAM && whole_name != NULL) {
        status = ucp_config_modify(config, whole_name, value);
    }
    if (status != UCS_OK) {
        return XM_UNSUPPORTED("UCX %s does not accept %s=%s: %s", ucp_get_version_string(), name,
                              value, ucs_status_string(status));
    }
    return XM_OK;
}

/* True when a comma-separated list holds one of the words of another. Words are compared whole:
 * "sm" is not "sm_x". */
static bool share_a_word(const char *list, const char *words)
{
    for (const char *at = list; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        size_t length = strcspn(at, ",");

        for (const char *word = words; *word != '\0';
             word += strcspn(word, ","), word += *word == ',') {
            if (strcspn(word, ",") == length && strncmp(word, at, length) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* Ports of RDMA devices are called e.g. mlx5_0:1. */
static bool is_rdma_port(const char *device)
{
    return strchr(device, ':') != NULL;
}

/* UCX warns about settings that no transport reads, so those are left out: a user would take
 * the warning for a fault. TCP does not use the ports of RDMA devices. */
static bool is_used(const setting_t *setting, const char *device, const char *tls)
{
    if (setting->users != NULL && is_rdma_port(device) && strcmp(setting->users, TCP) == 0) {
        return false;
    }
    if (setting->users == NULL || tls == NULL) {
        return true;
    }
    return tls[0] == '^' ? !share_a_word(tls + 1, setting->users)
                         : share_a_word(tls, setting->users);
}

/* Sets what the environment leaves open; the user's word wins over ours. */
static xm_status_t apply(ucp_config_t *config, const setting_t *list, size_t count,
                         const char *device, const char *tls)
{
    xm_status_t status = XM_OK;

    for (size_t i = 0; i < count && status == XM_OK; ++i) {
        if (getenv(list[i].variable) == NULL && is_used(&list[i], device, tls)) {
            status = modify(config, list[i].name, list[i].value, list[i].variable + strlen("UCX_"));
        }
    }
    return status;
}

/* Without an RDMA device in the machine UCX can choose nothing but TCP, whatever UCX_TLS allows. */
static bool machine_has_verbs(void)
{
    DIR *devices = opendir("/sys/class/infiniband");
    bool found = false;

    if (devices != NULL) {
        for (struct dirent *entry = readdir(devices); entry != NULL; entry = readdir(devices)) {
            found = found || entry->d_name[0] != '.';
        }
        (void)closedir(devices);
    }
    return found;
}

/* True when every word of UCX_TLS is one of these. The words of both lists are taken whole,
 * with a copy of bounded size; longer words are no transport of UCX. */
static bool has_only(const char *tls, const char *words)
{
    char word[32];

    for (const char *at = tls; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        (void)snprintf(word, sizeof(word), "%.*s", (int)strcspn(at, ","), at);
        if (!share_a_word(word, words)) {
            return false;
        }
    }
    return true;
}

/* True when nothing but TCP can carry the rail's messages. The answer decides about settings
 * that would slow RDMA down, and about frames, so in doubt it is false. */
static bool is_tcp_only(xm_ucx_rail_kind_t kind, const char *device, const char *tls)
{
    if (kind == XM_UCX_RAIL_TCP || (tls != NULL && has_only(tls, "tcp,self"))) {
        return true;
    }
    /* A rail inside a host always has shared memory, unless UCX_TLS leaves it out, which the
     * test above covers. */
    if (kind == XM_UCX_RAIL_HOST) {
        return false;
    }
    if (tls != NULL && has_only(tls, "tcp,self,cma,knem," SHARED_MEMORY_WORDS)) {
        return true;
    }
    return device[0] != '\0' ? !is_rdma_port(device) : !machine_has_verbs();
}

/* True when /dev/shm may not have enough for all ranks here, or cannot be written to. They start at
 * the same time and each sees what the others have not taken yet, so the sum for all is compared.
 */
static bool is_short_of_shm(int ranks)
{
    struct statvfs shm;

    return statvfs("/dev/shm", &shm) != 0 || access("/dev/shm", W_OK) != 0 ||
           (uint64_t)shm.f_bavail * shm.f_frsize < (uint64_t)XM_UCX_SHM_PER_RANK * (uint64_t)ranks;
}

/* Reads UCX's configuration and sets what this kind of rail needs. On failure the configuration
 * is released; otherwise it is the caller's. */
static xm_status_t configure(const xm_ucx_rail_params_t *params, bool tcp_only,
                             ucp_config_t **config)
{
    xm_ucx_rail_kind_t kind = params->kind;
    const char *device = params->device;
    const char *given = getenv("UCX_TLS");
    const char *tls = kind == XM_UCX_RAIL_TCP                     ? "tcp,self"
                      : kind == XM_UCX_RAIL_HOST && given == NULL ? "^tcp"
                                                                  : given;
    ucs_status_t ucs_status = ucp_config_read(NULL, NULL, config);
    xm_status_t status = XM_OK;

    if (ucs_status != UCS_OK) {
        return XM_MALFORMED("UCX refuses its UCX_ variables: %s", ucs_status_string(ucs_status));
    }
    /* The order matters little, since no setting is named in both lists; what the user has set
     * in the environment is never touched. */
    status = apply(*config, settings, sizeof(settings) / sizeof(settings[0]), device, tls);
    if (status == XM_OK && tcp_only) {
        status = apply(*config, tcp_only_settings,
                       sizeof(tcp_only_settings) / sizeof(tcp_only_settings[0]), device, tls);
    } else if (status == XM_OK && params->frames) {
        status = apply(*config, rdma_settings, sizeof(rdma_settings) / sizeof(rdma_settings[0]),
                       device, tls);
    }
    /* The rail of an emulated cluster is TCP even where the user allows more: shared memory
     * would bypass the network that is emulated. */
    if (kind == XM_UCX_RAIL_TCP && status == XM_OK) {
        status = modify(*config, "TLS", tls, NULL);
        if (status == XM_OK && getenv("UCX_NET_DEVICES") == NULL) {
            status = modify(*config, "NET_DEVICES", "lo", NULL);
        }
    }
    /* UCX would print an error for each segment and make no worker. System V segments need no
     * file system, and the kernel frees them with their last process. */
    if (given == NULL && kind != XM_UCX_RAIL_TCP && status == XM_OK &&
        is_short_of_shm(params->ranks_here)) {
        xm_log_info("/dev/shm has less than 8 MiB for each of the %d ranks here; UCX does without",
                    params->ranks_here);
        tls = kind == XM_UCX_RAIL_HOST ? "^tcp,posix" : "^posix";
    }
    /* Inside a host nothing goes over TCP, so no port is opened for it. */
    if (given == NULL && tls != NULL && kind != XM_UCX_RAIL_TCP && status == XM_OK) {
        status = modify(*config, "TLS", tls, NULL);
    }
    /* The rail's own device comes last, because it overrides what the environment says about
     * devices. */
    if (device[0] != '\0' && status == XM_OK) {
        status = modify(*config, "NET_DEVICES", device, NULL);
    }
    if (status < 0) {
        ucp_config_release(*config);
    }
    return status;
}

/* The text that UCX prints about a context or an endpoint; NULL: no memory. The caller frees it. */
static char *report_of(ucp_context_h context, ucp_ep_h ep)
{
    char *report = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&report, &size);

    if (stream == NULL) {
        (void)XM_NO_MEMORY("a report of UCX");
        return NULL;
    }
    if (context != NULL) {
        ucp_context_print_info(context, stream);
    } else {
        ucp_ep_print_info(ep, stream);
    }
    (void)fclose(stream);
    return report;
}

void xm_ucx_append_word(char *text, size_t size, const char *word, size_t length)
{
    for (const char *at = text; *at != '\0'; at += strcspn(at, " "), at += *at == ' ') {
        if (strcspn(at, " ") == length && strncmp(at, word, length) == 0) {
            return;
        }
    }
    xm_text_list_add(text, size, " ", "%.*s", (int)length, word);
}

/* The next device in a report of a context after @p at, which has lines "#      resource 1  :
 * md 1 dev 1  flags -- tcp/eth0"; NULL: no more. */
static const char *next_device(const char *at, size_t *length)
{
    while ((at = strstr(at, "resource ")) != NULL) {
        const char *end = at + strcspn(at, "\n");
        const char *slash = memchr(at, '/', (size_t)(end - at));

        if (slash != NULL) {
            *length = (size_t)(end - slash) - 1;
            return slash + 1;
        }
        at = end;
    }
    return NULL;
}

/* A device that UCX cannot use (down, without an address, not of the transports in UCX_TLS) is
 * no failure of ucp_init(): the context just lacks it, and the first message would fail with a
 * sentence that helps nobody. So the context is asked here, by name. */
static xm_status_t check_device(ucp_context_h context, const char *device, int rank)
{
    char *report = report_of(context, NULL);
    const char *tls = getenv("UCX_TLS"), *at = report;
    size_t length = 0;
    bool found = false;

    if (report == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    /* The device must stand in the report by its whole name: "eth1" is not found in "eth10". */
    while (!found && (at = next_device(at, &length)) != NULL) {
        found = strlen(device) == length && strncmp(at, device, length) == 0;
    }
    free(report);
    return found ? XM_OK
                 : xm_error_set(XM_ERR_UNREACHABLE,
                                "rank %d: XM_NICS: UCX cannot use the device '%s'; is it up, has "
                                "it an address, does UCX_TLS=%s allow it?",
                                rank, device, tls != NULL ? tls : "(unset)");
}

static void init_request(void *request)
{
    ((xm_ucx_request_t *)request)->abandoned = false;
}

/* Shared memory needs none: what UCX has let go of there has arrived. */
static bool has_active_messages(const xm_ucx_rail_t *rail, const xm_ucx_rail_params_t *params)
{
    return params->frames || params->kind != XM_UCX_RAIL_HOST || rail->tcp_only;
}

static ucs_status_t drop(void *arg, const void *header, size_t header_length, void *data,
                         size_t length, const ucp_am_recv_param_t *param)
{
    (void)arg;
    (void)header;
    (void)header_length;
    (void)data;
    (void)length;
    (void)param;
    return UCS_OK;
}

static ucs_status_t drop_empty_ones(ucp_worker_h worker)
{
    const ucp_am_handler_param_t param = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                                                        UCP_AM_HANDLER_PARAM_FIELD_CB,
                                          .id = XM_UCX_AM_EMPTY,
                                          .cb = drop};

    return ucp_worker_set_am_recv_handler(worker, &param);
}

/* Makes the context of a rail. The size of requests is enlarged by the mark of abandoned ones,
 * which UCX hands out with each request. */
static xm_status_t open_context(xm_ucx_rail_t *rail, const xm_ucx_rail_params_t *params)
{
    const char *device = params->device;
    ucp_params_t ucp_params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS |
                      UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_REQUEST_SIZE |
                      UCP_PARAM_FIELD_REQUEST_INIT,
        .request_size = sizeof(xm_ucx_request_t),
        .request_init = init_request,
        .features = UCP_FEATURE_TAG |
                    (has_active_messages(rail, params) ? (uint64_t)UCP_FEATURE_AM : 0) |
                    (params->wakeup ? (uint64_t)UCP_FEATURE_WAKEUP : 0),
        .estimated_num_eps = (size_t)params->ranks,
        .name = "crossmesh"};
    ucp_config_t *config;
    ucs_status_t ucs_status;
    xm_status_t status = XM_OK;

    XM_TRY(configure(params, rail->tcp_only, &config));
    /* The configuration is copied by ucp_init(), so it can go whatever the result is. */
    ucs_status = ucp_init(&ucp_params, config, &rail->context);
    ucp_config_release(config);
    if (ucs_status != UCS_OK) {
        const char *tls = getenv("UCX_TLS"), *devices = getenv("UCX_NET_DEVICES");

        return xm_error_set(XM_ERR_UNREACHABLE,
                            "UCX cannot start: %s (UCX_TLS=%s, UCX_NET_DEVICES=%s)",
                            ucs_status_string(ucs_status), tls != NULL ? tls : "",
                            device[0] != '\0' ? device
                            : devices != NULL ? devices
                                              : "");
    }
    if (device[0] != '\0') {
        status = check_device(rail->context, device, params->rank);
        if (status < 0) {
            ucp_cleanup(rail->context);
        }
    }
    return status;
}

/* Lists the devices that UCX would use if nobody restricted it. It makes a context for that and
 * throws it away, since only a context knows. */
xm_status_t xm_ucx_rail_devices(char **devices)
{
    static const xm_ucx_rail_params_t params = {
        .kind = XM_UCX_RAIL_NIC, .device = "", .ranks = 1, .ranks_here = 1};
    xm_ucx_rail_t rail = {0};
    size_t length = 0, size;
    char *report;

    XM_TRY(open_context(&rail, &params));
    report = report_of(rail.context, NULL);
    ucp_cleanup(rail.context);
    if (report == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    /* No list of names is longer than the report that it comes from. */
    size = strlen(report) + 1;
    *devices = calloc(1, size);
    for (const char *at = report; *devices != NULL && (at = next_device(at, &length)) != NULL;) {
        xm_ucx_append_word(*devices, size, at, length);
    }
    free(report);
    return *devices != NULL ? XM_OK : XM_NO_MEMORY("device names");
}

/* True when this build of UCX can send device memory. Debian's UCX has no CUDA modules, others
 * may. */
static bool takes_cuda(ucp_context_h context)
{
    ucp_context_attr_t attributes = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};

    return ucp_context_query(context, &attributes) == UCS_OK &&
           (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

const char *xm_ucx_rail_name(xm_ucx_rail_kind_t kind, const char *device)
{
    switch (kind) {
    case XM_UCX_RAIL_TCP:
        return "tcp";
    case XM_UCX_RAIL_HOST:
        return "shm";
    default:
        return device[0] != '\0' ? device : "auto";
    }
}

/* Opens a rail: context, worker, address and, for sleepers, the event descriptor. On failure
 * everything made before is freed in reverse order, and the sentence names the step. The worker
 * is SERIALIZED: any thread may use it, but never two at a time, which is the transport's own
 * rule. */
xm_status_t xm_ucx_rail_open(xm_ucx_rail_t *rail, const xm_ucx_rail_params_t *params)
{
    ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                         .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    const char *step = "worker";
    ucs_status_t ucs_status;

    *rail = (xm_ucx_rail_t){
        .event_fd = -1, .tcp_only = is_tcp_only(params->kind, params->device, getenv("UCX_TLS"))};
    XM_TRY(open_context(rail, params));
    ucs_status = ucp_worker_create(rail->context, &worker_params, &rail->worker);
    if (ucs_status != UCS_OK) {
        goto cleanup_context;
    }
    step = "handler of active messages";
    if (has_active_messages(rail, params)) {
        ucs_status = drop_empty_ones(rail->worker);
    }
    if (ucs_status != UCS_OK) {
        goto destroy_worker;
    }
    step = "worker address";
    ucs_status = ucp_worker_get_address(rail->worker, &rail->address, &rail->address_length);
    if (ucs_status != UCS_OK) {
        goto destroy_worker;
    }
    if (params->wakeup) {
        step = "event descriptor";
        ucs_status = ucp_worker_get_efd(rail->worker, &rail->event_fd);
        if (ucs_status != UCS_OK) {
            goto release_address;
        }
    }
    /* Asked once here, because it cannot change while the context lives. */
    rail->cuda = takes_cuda(rail->context);
    rail->open = true;
    return XM_OK;

release_address:
    ucp_worker_release_address(rail->worker, rail->address);
destroy_worker:
    ucp_worker_destroy(rail->worker);
cleanup_context:
    ucp_cleanup(rail->context);
    /* Too few file descriptors is what usually stands behind an input/output error. */
    return xm_error_set(ucs_status == UCS_ERR_IO_ERROR ? XM_ERR_IO : XM_ERR_UNSUPPORTED,
                        "UCX cannot make a %s: %s", step, ucs_status_string(ucs_status));
}

/* Frees the rail unless UCX still has requests in it: destroying such a worker can abort the
 * process, so it stays until the process ends. */
void xm_ucx_rail_close(xm_ucx_rail_t *rail)
{
    if (rail->open && rail->abandoned == 0 && rail->stuck == 0) {
        ucp_worker_release_address(rail->worker, rail->address);
        ucp_worker_destroy(rail->worker);
        ucp_cleanup(rail->context);
    }
    rail->open = false;
}

/* Adds the protocols of an endpoint to a text, each once. */
xm_status_t xm_ucx_rail_lanes(ucp_ep_h ep, char *buffer, size_t size)
{
    char *report = report_of(NULL, ep);
    size_t used = strlen(buffer);

    if (report == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    /* Several endpoints append to one text, so what is there already stays. */
    buffer += used;
    size -= used;
    /* The report has lines "#  lane[0]:  2:sysv/memory.0 md[0]  -> …". */
    for (char *line = strstr(report, "lane["); line != NULL; line = strstr(line + 1, "lane[")) {
        char *name = strchr(line, ']'), *slash;

        name += strcspn(name, " ");
        name += strspn(name, " ");
        name += strspn(name, "0123456789:");
        slash = strchr(name, '/');
        if (slash != NULL && slash < name + strcspn(name, " \n")) {
            xm_ucx_append_word(buffer, size, name, strcspn(name, ". \n"));
        }
    }
    free(report);
    return XM_OK;
}

/* Translates UCX's codes. Everything that means a broken connection becomes XM_ERR_PEER_DIED,
 * and a cancelled request means the same if the peer has failed, because then this transport
 * itself has cancelled it. */
xm_status_t xm_ucx_status(ucs_status_t status, bool peer_failed)
{
    switch (status) {
    case UCS_OK:
        return XM_OK;
    case UCS_ERR_MESSAGE_TRUNCATED:
        return XM_ERR_CORRUPT;
    case UCS_ERR_CANCELED:
        return peer_failed ? XM_ERR_PEER_DIED : XM_ERR_CANCELED;
    case UCS_ERR_NO_MEMORY:
        return XM_ERR_NO_MEMORY;
    case UCS_ERR_UNREACHABLE:
        return XM_ERR_UNREACHABLE;
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_REJECTED:
    case UCS_ERR_IO_ERROR:
    case UCS_ERR_TIMED_OUT:
        return XM_ERR_PEER_DIED;
    default:
        return peer_failed ? XM_ERR_PEER_DIED : XM_ERR_INTERNAL;
    }
}
