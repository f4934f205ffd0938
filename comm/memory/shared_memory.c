/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that other ranks of a machine can map: a sealed memory file, found through
 * /proc/PID/fd. No name in a file system is used, so nothing can be left behind and no /dev/shm
 * is needed (containers have 64 MiB of it); the kernel frees it with its last user. The key
 * that travels says which file of which process it is, and carries random bytes that also stand
 * behind the data, so a reused process or file number is noticed. Seals make the size
 * immutable: without them a reader could be killed by SIGBUS. */
#include "comm/memory/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/base.h"

enum { NONCE_SIZE = 16, PATH_SIZE = 64 };

/* With these seals a file keeps its size for ever. */
static const int size_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct xm_shared_memory {
    xm_shared_memory_t *next; /* in the registry */
    char *address;
    uint64_t length; /* as asked for */
    uint64_t room;   /* the same in whole pages; the nonce is in the page behind */
    uint64_t inode;
    int fd;
    unsigned char nonce[NONCE_SIZE];
};

/* The fields of a key. */
typedef struct {
    uint32_t pid, fd;
    uint64_t length, inode, pid_namespace;
    unsigned char nonce[NONCE_SIZE];
} fields_t;

/* All shared memories of this process: code that is given a pointer into one knows nothing else
 * of it. The lock makes look-ups safe from any thread. */
static struct {
    pthread_mutex_t lock;
    xm_shared_memory_t *first;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t page_size(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t in_pages(uint64_t length)
{
    return (length + page_size() - 1) / page_size() * page_size();
}

/* True for lengths whose pages, and one more, can be counted in an off_t. */
static bool is_length(uint64_t length)
{
    return length > 0 && length <= INT64_MAX - 2 * page_size();
}

/* Process ids only mean something inside one namespace; a container usually has its own. */
static uint64_t pid_namespace(void)
{
    struct stat info;

    return stat("/proc/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

/* The key is only valid while this process lives and keeps the file open. */
void xm_shared_memory_key(const xm_shared_memory_t *memory,
                          unsigned char key[XM_SHARED_MEMORY_KEY_SIZE])
{
    xm_put_le(key, (uint32_t)getpid(), 4);
    xm_put_le(key + 4, (uint32_t)memory->fd, 4);
    xm_put_le(key + 8, memory->length, 8);
    xm_put_le(key + 16, memory->inode, 8);
    xm_put_le(key + 24, pid_namespace(), 8);
    memcpy(key + 32, memory->nonce, NONCE_SIZE);
}

/* A key comes from another process, so its numbers are checked before they become paths and
 * sizes. */
static xm_status_t decode(const unsigned char key[XM_SHARED_MEMORY_KEY_SIZE], fields_t *fields)
{
    fields->pid = (uint32_t)xm_get_le(key, 4);
    fields->fd = (uint32_t)xm_get_le(key + 4, 4);
    fields->length = xm_get_le(key + 8, 8);
    fields->inode = xm_get_le(key + 16, 8);
    fields->pid_namespace = xm_get_le(key + 24, 8);
    memcpy(fields->nonce, key + 32, NONCE_SIZE);
    if (fields->pid == 0 || fields->pid > INT_MAX || fields->fd > INT_MAX ||
        !is_length(fields->length)) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "no key of a shared memory: process %" PRIu32 ", file %" PRIu32
                            ", %" PRIu64 " bytes",
                            fields->pid, fields->fd, fields->length);
    }
    return XM_OK;
}

/* Makes the file of a memory whose length is known, with one page more for the nonce, and seals
 * its size. */
static xm_status_t make_file(xm_shared_memory_t *memory)
{
    struct stat info;

    memory->fd = memfd_create("crossmesh", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory->fd < 0) {
        return xm_error_set(errno == ENOSYS || errno == EINVAL ? XM_ERR_UNSUPPORTED : XM_ERR_IO,
                            "no file for a shared memory of %" PRIu64 " bytes: %s", memory->length,
                            strerror(errno));
    }
    if (ftruncate(memory->fd, (off_t)(memory->room + page_size())) != 0) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no shared memory of %" PRIu64 " bytes: %s",
                            memory->length, strerror(errno));
    }
    if (fcntl(memory->fd, F_ADD_SEALS, size_seals) != 0 || fstat(memory->fd, &info) != 0) {
        return XM_UNSUPPORTED("the size of a shared memory cannot be sealed: %s", strerror(errno));
    }
    memory->inode = (uint64_t)info.st_ino;
    return XM_OK;
}

/* Maps the file and writes the nonce behind the data; that page is read-only afterwards, so a
 * orphan write cannot change it. */
static xm_status_t map_file(xm_shared_memory_t *memory)
{
    size_t bytes = (size_t)(memory->room + page_size());
    void *address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);

    if (address == MAP_FAILED) {
        return xm_error_set(XM_ERR_NO_MEMORY, "cannot map a shared memory of %" PRIu64 " bytes: %s",
                            memory->length, strerror(errno));
    }
    memory->address = address;
    if (getrandom(memory->nonce, NONCE_SIZE, 0) != NONCE_SIZE) {
        return xm_error_set(XM_ERR_IO, "no random bytes for a shared memory: %s", strerror(errno));
    }
    memcpy(memory->address + memory->room, memory->nonce, NONCE_SIZE);
    if (mprotect(memory->address + memory->room, page_size(), PROT_READ) != 0) {
        return xm_error_set(XM_ERR_NO_MEMORY, "cannot protect the end of a shared memory: %s",
                            strerror(errno));
    }
    return XM_OK;
}

/* Takes apart what creation has left half made as well. */
static void free_memory(xm_shared_memory_t *memory)
{
    if (memory->address != NULL) {
        (void)munmap(memory->address, (size_t)(memory->room + page_size()));
    }
    if (memory->fd >= 0) {
        (void)close(memory->fd);
    }
    free(memory);
}

/* Creates the memory; it is entered in the registry only when it is complete. */
xm_status_t xm_shared_memory_create(uint64_t length, xm_shared_memory_t **memory)
{
    xm_shared_memory_t *created;
    xm_status_t status;

    XM_NEED_ARGUMENTS(memory);
    if (!is_length(length)) {
        return XM_INVALID("a shared memory cannot have %" PRIu64 " bytes", length);
    }
    created = calloc(1, sizeof(*created));
    XM_NEED_MEMORY(created, "a shared memory");
    created->length = length;
    created->room = in_pages(length);
    status = make_file(created);
    XM_THEN(status, map_file(created));
    if (status < 0) {
        free_memory(created);
        return status;
    }
    (void)pthread_mutex_lock(&registry.lock);
    created->next = registry.first;
    registry.first = created;
    (void)pthread_mutex_unlock(&registry.lock);
    *memory = created;
    return XM_OK;
}

void *xm_shared_memory_address(const xm_shared_memory_t *memory)
{
    if (XM_IS_NULL(memory)) {
        return NULL;
    }
    return memory->address;
}

/* Finds the memory that holds a range, if there is one. Ranges that reach beyond it do not
 * count. */
bool xm_shared_memory_find(const void *address, uint64_t length,
                           unsigned char key[XM_SHARED_MEMORY_KEY_SIZE], uint64_t *offset)
{
    xm_shared_memory_t *memory;

    (void)pthread_mutex_lock(&registry.lock);
    for (memory = registry.first; memory != NULL; memory = memory->next) {
        uintptr_t start = (uintptr_t)memory->address, at = (uintptr_t)address;

        if (at >= start && at - start < memory->length && length <= memory->length - (at - start)) {
            *offset = at - start;
            xm_shared_memory_key(memory, key);
            break;
        }
    }
    (void)pthread_mutex_unlock(&registry.lock);
    return memory != NULL;
}

/* The memory must exist; readers that have mapped it keep their mapping. */
void xm_shared_memory_destroy(xm_shared_memory_t *memory)
{
    xm_shared_memory_t **link = &registry.first;

    if (memory == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&registry.lock);
    while (*link != memory) {
        link = &(*link)->next;
    }
    *link = memory->next;
    (void)pthread_mutex_unlock(&registry.lock);
    free_memory(memory);
}

/* One sentence for all signs that the file is not the one of the key. */
static xm_status_t refuse(const fields_t *fields, const char *what)
{
    return XM_MISMATCH("file %" PRIu32 " of process %" PRIu32 " %s: the shared memory of %" PRIu64
                       " bytes is gone",
                       fields->fd, fields->pid, what, fields->length);
}

/* Checks the file itself: its kind, number and size. It is looked at before it is opened,
 * because opening what is not ours, a pipe or a device, may wait or do something. */
static xm_status_t check_file(const fields_t *fields, const struct stat *info)
{
    if (!S_ISREG(info->st_mode) || (uint64_t)info->st_ino != fields->inode ||
        (uint64_t)info->st_size != in_pages(fields->length) + page_size()) {
        return refuse(fields, "is another one now");
    }
    return XM_OK;
}

/* Opens the file of another process by /proc, which needs the right to look at that process,
 * not to trace it. */
static xm_status_t open_file(const fields_t *fields, int *fd)
{
    char path[PATH_SIZE];
    struct stat info;
    xm_status_t status;
    int opened;

    (void)snprintf(path, sizeof(path), "/proc/%" PRIu32 "/fd/%" PRIu32, fields->pid, fields->fd);
    if (stat(path, &info) != 0) {
        return xm_error_set(XM_ERR_UNREACHABLE, "%s: %s", path, strerror(errno));
    }
    XM_TRY(check_file(fields, &info));
    opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (opened < 0) {
        return xm_error_set(XM_ERR_UNREACHABLE, "%s: %s", path, strerror(errno));
    }
    /* Between the two calls the numbers may have got another owner, so the opened file is
     * checked again. */
    status = fstat(opened, &info) == 0 ? check_file(fields, &info)
                                       : refuse(fields, "cannot be looked at");
    if (status == XM_OK) {
        int seals = fcntl(opened, F_GET_SEALS);

        if (seals < 0 || (seals & size_seals) != size_seals) {
            status = refuse(fields, "may change its size");
        }
    }
    if (status < 0) {
        (void)close(opened);
        return status;
    }
    *fd = opened;
    return XM_OK;
}

/* Maps another rank's memory for reading. Every check that fails means that the memory is gone
 * or was never there, and the caller takes the messages' way. */
xm_status_t xm_shared_memory_attach(const unsigned char key[XM_SHARED_MEMORY_KEY_SIZE],
                                    xm_shared_view_t *view)
{
    fields_t fields;
    xm_status_t status = decode(key, &fields);
    uint64_t room, here = pid_namespace();
    char *address;
    int fd = -1;

    /* The same number would name another process here, so it is not even looked at. */
    if (status == XM_OK && fields.pid_namespace != here) {
        status = xm_error_set(XM_ERR_UNREACHABLE,
                              "process %" PRIu32 " is in process-id namespace %" PRIu64
                              ", this one in %" PRIu64,
                              fields.pid, fields.pid_namespace, here);
    }
    XM_THEN(status, open_file(&fields, &fd));
    XM_TRY(status);
    room = in_pages(fields.length);
    address = mmap(NULL, (size_t)(room + page_size()), PROT_READ, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (address == MAP_FAILED) {
        return xm_error_set(XM_ERR_NO_MEMORY,
                            "cannot map the shared memory of process %" PRIu32 ", %" PRIu64
                            " bytes: %s",
                            fields.pid, fields.length, strerror(errno));
    }
    if (memcmp(address + room, fields.nonce, NONCE_SIZE) != 0) {
        (void)munmap(address, (size_t)(room + page_size()));
        return refuse(&fields, "has other random bytes");
    }
    *view = (xm_shared_view_t){.address = address, .length = fields.length};
    return XM_OK;
}

void xm_shared_memory_detach(xm_shared_view_t *view)
{
    if (view->address != NULL) {
        (void)munmap((void *)(uintptr_t)view->address,
                     (size_t)(in_pages(view->length) + page_size()));
    }
    *view = (xm_shared_view_t){0};
}
