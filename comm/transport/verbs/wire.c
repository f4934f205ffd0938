#include "comm/transport/verbs/wire.h"

#include <string.h>

#include "comm/base.h"

/* Bytes of fields. */
enum { U8 = 1, U16 = 2, U32 = 4, U64 = 8 };

/* A version that differs makes the offer unreadable, which is what ranks of different builds are
 * told. */
enum { OFFER_MAGIC = 0x42564d58, OFFER_VERSION = 1 };

/* The InfiniBand specification has five MTUs, from 256 to 4096 bytes. */
enum { MTU_LEAST = 1, MTU_MOST = 5 };

static const uint64_t tag_limit = UINT64_C(1) << 48;

/* Walks over bytes that are written or read in order. */
typedef struct {
    uint8_t *at;
} writer_t;

typedef struct {
    const uint8_t *at;
} reader_t;

static void put(writer_t *writer, uint64_t value, int size)
{
    xm_put_le(writer->at, value, size);
    writer->at += size;
}

static void put_bytes(writer_t *writer, const void *bytes, size_t size)
{
    memcpy(writer->at, bytes, size);
    writer->at += size;
}

static uint64_t get(reader_t *reader, int size)
{
    uint64_t value = xm_get_le(reader->at, size);

    reader->at += size;
    return value;
}

static void get_bytes(reader_t *reader, void *bytes, size_t size)
{
    memcpy(bytes, reader->at, size);
    reader->at += size;
}

size_t xm_verbs_header_encode(const xm_verbs_header_t *header, const xm_verbs_grant_t *grant,
                              uint8_t *bytes)
{
    writer_t writer = {bytes};

    put(&writer, header->kind, U8);
    put(&writer, header->kind == XM_VERBS_GRANT ? (uint64_t)grant->rails : 0, U8);
    put(&writer, header->credits, U16);
    put(&writer, header->taken, U32);
    put(&writer, header->tag, U64);
    put(&writer, header->length, U64);
    put(&writer, header->sender, U32);
    put(&writer, header->receiver, U32);
    if (header->kind == XM_VERBS_GRANT) {
        put(&writer, grant->address, U64);
        for (int rail = 0; rail < grant->rails; ++rail) {
            put(&writer, grant->keys[rail], U32);
        }
    }
    return (size_t)(writer.at - bytes);
}

static bool decode_grant(reader_t reader, size_t size, uint64_t length, xm_verbs_grant_t *grant)
{
    if (grant->rails < 1 || grant->rails > XM_NICS_MAX ||
        size != U64 + U32 * (size_t)grant->rails) {
        return false;
    }
    grant->address = get(&reader, U64);
    for (int rail = 0; rail < grant->rails; ++rail) {
        grant->keys[rail] = (uint32_t)get(&reader, U32);
    }
    return length >= 1 && length <= UINT64_MAX - grant->address;
}

bool xm_verbs_header_decode(const uint8_t *bytes, size_t size, xm_verbs_header_t *header,
                            xm_verbs_grant_t *grant)
{
    reader_t reader = {bytes};
    uint64_t kind, rails;
    bool sized, named;

    if (size < XM_VERBS_HEADER_SIZE) {
        return false;
    }
    size -= XM_VERBS_HEADER_SIZE;
    kind = get(&reader, U8);
    rails = get(&reader, U8);
    if (kind < XM_VERBS_EAGER || kind > XM_VERBS_CREDIT) {
        return false;
    }
    *header = (xm_verbs_header_t){.kind = (xm_verbs_kind_t)kind};
    header->credits = (uint16_t)get(&reader, U16);
    header->taken = (uint32_t)get(&reader, U32);
    header->tag = get(&reader, U64);
    header->length = get(&reader, U64);
    header->sender = (uint32_t)get(&reader, U32);
    header->receiver = (uint32_t)get(&reader, U32);
    if (header->kind == XM_VERBS_GRANT) {
        grant->rails = (int)rails;
        return header->tag == 0 && decode_grant(reader, size, header->length, grant);
    }
    sized = header->kind == XM_VERBS_EAGER || header->kind == XM_VERBS_REQUEST;
    named = header->kind == XM_VERBS_REQUEST || header->kind == XM_VERBS_DISCARD;
    if (rails != 0 || header->receiver != 0 || header->tag >= tag_limit ||
        (!named && header->sender != 0) || (!sized && (header->tag != 0 || header->length != 0)) ||
        (sized && header->length == 0)) {
        return false;
    }
    return size == (header->kind == XM_VERBS_EAGER ? header->length : 0);
}

static void encode_port(writer_t *writer, const xm_verbs_port_offer_t *port)
{
    put_bytes(writer, port->name, sizeof(port->name));
    put(writer, port->rate, U64);
    put(writer, port->lid, U16);
    put(writer, port->infiniband, U8);
    put(writer, port->mtu, U8);
    put(writer, port->gids, U32);
    put_bytes(writer, port->gid, sizeof(port->gid));
}

size_t xm_verbs_offer_encode(const xm_verbs_offer_t *offer, uint8_t *bytes)
{
    writer_t writer = {bytes};

    put(&writer, OFFER_MAGIC, U32);
    put(&writer, OFFER_VERSION, U16);
    put(&writer, (uint64_t)offer->ports, U16);
    put(&writer, offer->slots, U32);
    put(&writer, offer->slot_size, U32);
    put(&writer, offer->seed, U32);
    for (int i = 0; i < offer->ports; ++i) {
        encode_port(&writer, &offer->port[i]);
    }
    return (size_t)(writer.at - bytes);
}

/* The name is a text that fills its field up with zeros, so are addresses that a port lacks. */
static bool check_port(const xm_verbs_port_offer_t *port)
{
    static const uint8_t nothing[XM_NICS_NAME_SIZE];
    size_t length = strnlen(port->name, sizeof(port->name));

    if (length == 0 || length == sizeof(port->name) ||
        memcmp(port->name + length, nothing, sizeof(port->name) - length) != 0 ||
        port->mtu < MTU_LEAST || port->mtu > MTU_MOST || port->gids >= 1u << XM_VERBS_GID_KINDS) {
        return false;
    }
    for (int kind = 0; kind < XM_VERBS_GID_KINDS; ++kind) {
        if ((port->gids & 1u << kind) == 0 &&
            memcmp(port->gid[kind], nothing, XM_VERBS_GID_SIZE) != 0) {
            return false;
        }
    }
    return port->infiniband || port->gids != 0;
}

static bool decode_port(reader_t *reader, xm_verbs_port_offer_t *port)
{
    uint64_t infiniband;

    get_bytes(reader, port->name, sizeof(port->name));
    port->rate = get(reader, U64);
    port->lid = (uint16_t)get(reader, U16);
    infiniband = get(reader, U8);
    port->infiniband = infiniband == 1;
    port->mtu = (uint8_t)get(reader, U8);
    port->gids = (unsigned)get(reader, U32);
    get_bytes(reader, port->gid, sizeof(port->gid));
    return infiniband <= 1 && port->rate <= XM_NICS_MAX_RATE && check_port(port);
}

bool xm_verbs_offer_decode(const uint8_t *bytes, size_t size, xm_verbs_offer_t *offer)
{
    reader_t reader = {bytes};
    uint64_t magic, version, ports;

    if (size < XM_VERBS_OFFER_HEAD_SIZE) {
        return false;
    }
    magic = get(&reader, U32);
    version = get(&reader, U16);
    ports = get(&reader, U16);
    if (magic != OFFER_MAGIC || version != OFFER_VERSION || ports < 1 || ports > XM_NICS_MAX ||
        size != XM_VERBS_OFFER_HEAD_SIZE + ports * XM_VERBS_OFFER_PORT_SIZE) {
        return false;
    }
    *offer = (xm_verbs_offer_t){.ports = (int)ports};
    offer->slots = (uint32_t)get(&reader, U32);
    offer->slot_size = (uint32_t)get(&reader, U32);
    offer->seed = (uint32_t)get(&reader, U32);
    for (int i = 0; i < offer->ports; ++i) {
        if (!decode_port(&reader, &offer->port[i])) {
            return false;
        }
    }
    return offer->slots >= 4 && offer->slots <= XM_VERBS_MAX_SLOTS &&
           offer->slot_size > XM_VERBS_HEADER_SIZE + XM_VERBS_GRANT_SIZE &&
           offer->slot_size <= XM_VERBS_MAX_SLOT_SIZE;
}
