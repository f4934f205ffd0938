/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/nccl/real_nccl.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file in memory. */
typedef struct {
    const uint8_t *bytes;
    size_t size;
} image_t;

static bool map_file(const char *path, image_t *image)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *bytes = MAP_FAILED;

    if (fd >= 0 && fstat(fd, &status) == 0 && status.st_size > (off_t)sizeof(Elf64_Ehdr)) {
        bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    if (bytes == MAP_FAILED) {
        return false;
    }
    *image = (image_t){.bytes = bytes, .size = (size_t)status.st_size};
    return true;
}

static void unmap(const image_t *image)
{
    (void)munmap((void *)(uintptr_t)image->bytes, image->size);
}

static const Elf64_Shdr *sections(const image_t *image, int *count)
{
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)image->bytes;

    *count = header->e_shnum;
    return (const Elf64_Shdr *)(image->bytes + header->e_shoff);
}

/* The address of a function whose mangled name holds `name`, relative to where the file is loaded.
 */
static uintptr_t find_function(const image_t *image, const char *name)
{
    int count;
    const Elf64_Shdr *section = sections(image, &count);

    for (int i = 0; i < count; ++i) {
        const Elf64_Sym *symbols = (const Elf64_Sym *)(image->bytes + section[i].sh_offset);
        const char *names;

        if (section[i].sh_type != SHT_SYMTAB) {
            continue;
        }
        names = (const char *)image->bytes + section[section[i].sh_link].sh_offset;
        for (size_t k = 0; k < section[i].sh_size / sizeof(*symbols); ++k) {
            const char *at = strstr(names + symbols[k].st_name, name);

            if (ELF64_ST_TYPE(symbols[k].st_info) == STT_FUNC && symbols[k].st_value != 0 &&
                at != NULL && (at[strlen(name)] < '0' || at[strlen(name)] > '9')) {
                return symbols[k].st_value;
            }
        }
    }
    return 0;
}

bool real_nccl_is_known(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*get_version)(int *) = NULL;
    int version = 0;
    image_t image;
    bool found;

    if (library != NULL) {
        *(void **)&get_version = dlsym(library, "ncclGetVersion");
    }
    if (get_version == NULL || get_version(&version) != 0 || !map_file(path, &image)) {
        (void)fprintf(stderr,
                      "skipped: %s is no NCCL that can be opened; WITH_NCCL=1 ./test fetches one\n",
                      path);
        return false;
    }
    found = find_function(&image, "getNcclNet_v11") != 0;
    unmap(&image);
    if (!found || version / 100 != REAL_NCCL_VERSION) {
        (void)fprintf(stderr, "skipped: %s is version %d%s, not 2.28 with its symbols\n", path,
                      version, found ? "" : " without symbols");
        return false;
    }
    return true;
}

/* Calls NCCL's function of that name on an opened plugin. */
static const void *call(const char *path, const char *name, void *plugin)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct link_map *map = NULL;
    uintptr_t at = 0;
    image_t image;

    if (library == NULL || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || !map_file(path, &image)) {
        (void)fprintf(stderr, "%s cannot be opened: %s\n", path, dlerror());
        return NULL;
    }
    at = find_function(&image, name);
    unmap(&image);
    if (at == 0) {
        (void)fprintf(stderr, "%s has no %s\n", path, name);
        return NULL;
    }
    return ((const void *(*)(void *))(map->l_addr + at))(plugin);
}

void *real_nccl_open(const char *path, const char *entry)
{
    return (void *)(uintptr_t)call(path, "ncclOpenNetPluginLib", (void *)(uintptr_t)entry);
}

const void *real_nccl_table(const char *path, int version, void *plugin)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "getNcclNet_v%d", version);
    return call(path, name, plugin);
}

const void *real_nccl_tuner(const char *path, void *plugin)
{
    return call(path, "getNcclTuner_v5", plugin);
}
