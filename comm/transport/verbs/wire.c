/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of the verbs transport: offers at the start. They are written
 * field by field and little-endian, so compilers and machines need not agree on the layout of
 * structs. Decoding accepts only what encoding can make: a peer with another build is found out
 * at once instead of writing to a wrong address later. A fuzz target feeds the decoders. */
#include "comm/transport/verbs/wire.h"

#include <string.h>

#include "comm/base.h"
#include "comm/transport/rails.h"

/* Bytes of fields. */
enum { U8 = 1, U16 = 2, U32 = 4, U64 = 8 };

/* An offer of another version is unreadable, which is how ranks of different builds find out. */
enum { OFFER_MAGIC = 0x42564d58, OFFER_VERSION = 3 };

/* The InfiniBand specification has five MTUs, from 256 to 4096 bytes. */
enum { MTU_LEAST = 1, MTU_MOST = 5 };

/* A position that moves over bytes as they are written or read. */
typedef struct {
    uint8_t *at;
} writer_t;

typedef struct {
    const uint8_t *at;
} reader_t;

/* The callers know the size of what they write, so a writer has no end of its own. */
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

/* The decoders compare the size with what they will read before the first get(). */
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

/* A port's name and addresses have fixed fields, so an offer's size follows from its number of
 * ports. */
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

/* Writes a rank's offer. The caller's buffer has room for XM_NICS_MAX ports. */
size_t xm_verbs_offer_encode(const xm_verbs_offer_t *offer, uint8_t *bytes)
{
    writer_t writer = {bytes};

    /* The head of the offer has the sizes of everything that this rank keeps posted, and the
     * seed of its packet numbers. */
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

/* Checks a port of an offer. The name fills its field up with zeros, and so do addresses that
 * the port lacks: equal offers have equal bytes. */
static bool check_port(const xm_verbs_port_offer_t *port)
{
    static const uint8_t nothing[XM_NICS_NAME_SIZE];
    size_t length = strnlen(port->name, sizeof(port->name));

    if (length == 0 || length == sizeof(port->name) ||
        memcmp(port->name + length, nothing, sizeof(port->name) - length) != 0 ||
        port->mtu < MTU_LEAST || port->mtu > MTU_MOST || port->gids >= 1u << XM_VERBS_GID_KINDS) {
        return false;
    }
    /* Addresses of kinds that the port lacks must be zeros. */
    for (int kind = 0; kind < XM_VERBS_GID_KINDS; ++kind) {
        if ((port->gids & 1u << kind) == 0 &&
            memcmp(port->gid[kind], nothing, XM_VERBS_GID_SIZE) != 0) {
            return false;
        }
    }
    /* An Ethernet port without an address cannot be reached, and a rank would never offer it. */
    return port->infiniband || port->gids != 0;
}

static bool decode_port(reader_t *reader, xm_verbs_port_offer_t *port)
{
    uint64_t infiniband;

    get_bytes(reader, port->name, sizeof(port->name));
    port->rate = get(reader, U64);
    port->lid = (uint16_t)get(reader, U16);
    infiniband = get(reader, U8);
    /* The flag must be 0 or 1: any other byte would encode differently from how it was read. */
    port->infiniband = infiniband == 1;
    port->mtu = (uint8_t)get(reader, U8);
    port->gids = (unsigned)get(reader, U32);
    get_bytes(reader, port->gid, sizeof(port->gid));
    return infiniband <= 1 && port->rate <= XM_NICS_MAX_RATE && check_port(port);
}

/* Reads a rank's offer. The limits on slots keep a wrong offer from making this rank allocate
 * without measure. */
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
    /* The size is checked against the number of ports before any of them is read. */
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
    /* A slot must hold the longest frame of the protocol itself, which is a grant. */
    return offer->slots >= 4 && offer->slots <= XM_VERBS_MAX_SLOTS &&
           offer->slot_size > XM_RAILS_FRAME_SIZE + 4 * XM_NICS_MAX &&
           offer->slot_size <= XM_VERBS_MAX_SLOT_SIZE;
}
