/* SPDX-License-Identifier: Apache-2.0 */
/* Cards and findings as bytes of fixed size, for an allgather. Texts fill their fields up with
 * zeros, and decoding insists on that, so equal cards are equal bytes and nothing hides behind
 * a terminator. */
#include "comm/doctor/wire.h"

#include <string.h>

#include "comm/base.h"

/* A text that is too long is cut, because a finding that ends early is better than none. */
static size_t put_text(uint8_t *bytes, const char *text, size_t size)
{
    memset(bytes, 0, size);
    memcpy(bytes, text, strnlen(text, size - 1));
    return size;
}

/* Reads a text and moves *at behind it; false when it is none. */
static bool get_text(const uint8_t **at, char *text, size_t size)
{
    size_t length = strnlen((const char *)*at, size);

    for (size_t i = length; i < size; ++i) {
        if ((*at)[i] != 0) {
            return false;
        }
    }
    memcpy(text, *at, size);
    *at += size;
    return length < size;
}

/* Times are two's complement, since a clock may be ahead or behind. */
void xm_card_encode(const xm_card_t *card, uint8_t bytes[XM_CARD_SIZE])
{
    uint8_t *at = bytes;

    at += put_text(at, card->host, sizeof(card->host));
    for (int a = 0; a < XM_ASPECT_COUNT; ++a) {
        at += put_text(at, card->text[a], sizeof(card->text[a]));
    }
    xm_put_le(at, (uint64_t)card->offset_ns, 8);
    xm_put_le(at + 8, (uint64_t)card->uncertainty_ns, 8);
}

bool xm_card_decode(const uint8_t *bytes, size_t size, xm_card_t *card)
{
    const uint8_t *at = bytes;

    if (size != XM_CARD_SIZE || !get_text(&at, card->host, sizeof(card->host))) {
        return false;
    }
    for (int a = 0; a < XM_ASPECT_COUNT; ++a) {
        if (!get_text(&at, card->text[a], sizeof(card->text[a]))) {
            return false;
        }
    }
    card->offset_ns = (int64_t)xm_get_le(at, 8);
    card->uncertainty_ns = (int64_t)xm_get_le(at + 8, 8);
    /* A negative uncertainty cannot be measured; it would make every offset look certain. */
    return card->uncertainty_ns >= 0;
}

void xm_finding_encode(const xm_finding_t *finding, uint8_t bytes[XM_FINDING_SIZE])
{
    uint8_t *at = bytes;

    *at++ = (uint8_t)finding->severity;
    at += put_text(at, finding->subject, sizeof(finding->subject));
    at += put_text(at, finding->text, sizeof(finding->text));
    (void)put_text(at, finding->advice, sizeof(finding->advice));
}

/* A severity beyond the known ones is refused: it would index a table of names. */
bool xm_finding_decode(const uint8_t *bytes, size_t size, xm_finding_t *finding)
{
    const uint8_t *at = bytes + 1;

    if (size != XM_FINDING_SIZE || bytes[0] >= XM_SEVERITY_COUNT) {
        return false;
    }
    finding->severity = (xm_severity_t)bytes[0];
    return get_text(&at, finding->subject, sizeof(finding->subject)) &&
           get_text(&at, finding->text, sizeof(finding->text)) &&
           get_text(&at, finding->advice, sizeof(finding->advice));
}
