#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs into a scratch folder, moves that elsewhere, and uses it as a stranger would: by pkg-config, by find_package,
# from C and from C++, the man pages, the commands; and looks at what lies there.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/moved
flags=${SANITIZE:+-fsanitize=$SANITIZE}

fail() {
    echo "FAILED: $*"
    exit 1
}

cmake --install "$BUILD_DIR" --prefix "$scratch/prefix" >"$scratch/install.log" || fail "installing"
mv "$scratch/prefix" "$prefix"
lib=$(dirname "$(find "$prefix" -name libcrossmesh.so)")

# The public headers and nothing else.
strange=$(cd "$prefix/include" && find . -type f | grep -v -e '^\./crossmesh\.h$' -e '^\./autopar\.h$' \
    -e '^\./crossmesh/[a-z_]*\.h$' -e '^\./autopar/[a-z_]*\.h$' || true)
[ -z "$strange" ] || fail "installed as headers: $strange"
[ -f "$prefix/include/crossmesh/version.h" ] || fail "no version.h"
grep -rn --include='*.h' '#include "' "$prefix/include" && fail "a public header includes by quotes"

# The prefix is where the pkg-config files lie, with and without --define-prefix.
export PKG_CONFIG_PATH="$lib/pkgconfig"
[ "$(pkg-config --modversion crossmesh)" = "$VERSION" ] || fail "pkg-config has another version"
for option in "" --define-prefix --dont-define-prefix; do
    for name in crossmesh autopar; do
        # shellcheck disable=SC2086 # no option is none
        pkg-config $option --variable=libdir "$name" >"$scratch/libdir"
        [ "$(realpath "$(cat "$scratch/libdir")")" = "$(realpath "$lib")" ] ||
            fail "pkg-config $option: $name in $(cat "$scratch/libdir")"
    done
done

cat >"$scratch/user.c" <<'END'
#include <crossmesh.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    xm_mesh_t *mesh = NULL;
    xm_network_t *network = NULL;
    int rank;

    if (strcmp(xm_version(), XM_VERSION_STRING) != 0 || xm_mesh_parse("2x4", NULL, 8, &mesh) != XM_OK) {
        return 1;
    }
    rank = xm_mesh_rank(mesh, 7);
    xm_mesh_destroy(mesh);
    printf("%d %s\n", rank, xm_network_create(&params, &network) < 0 ? xm_last_error() : "made");
    return 0;
}
END
said='15 xm_network_create: params.host_of_rank is NULL'

# use COMPILER STANDARD LANGUAGE: links the program by pkg-config and runs it.
use() {
    # shellcheck disable=SC2046,SC2086 # flags are words
    "$1" -x "$3" -std="$2" -Wall -Wextra -Werror -pedantic $flags -o "$scratch/user" "$scratch/user.c" -x none \
        $(pkg-config --cflags --libs crossmesh) || fail "linking by pkg-config with $1"
    [ "$(LD_LIBRARY_PATH=$lib "$scratch/user")" = "$said" ] || fail "the program linked with $1"
}
use "$CC" c11 c
if [ -z "$SANITIZE" ]; then
    [ -x "$CXX" ] || fail "no g++"
    use "$CXX" c++17 c++
fi

mkdir "$scratch/cmake"
cat >"$scratch/cmake/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(crossmesh 0.2 REQUIRED)
add_executable(user ../user.c)
target_link_libraries(user PRIVATE crossmesh::autopar crossmesh::crossmesh)
END
if ! cmake -G Ninja -S "$scratch/cmake" -B "$scratch/cmake/build" -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_C_COMPILER="$CC" -DCMAKE_C_FLAGS="$flags" >"$scratch/cmake.log" 2>&1 ||
    ! cmake --build "$scratch/cmake/build" >>"$scratch/cmake.log" 2>&1; then
    cat "$scratch/cmake.log"
    fail "find_package(crossmesh)"
fi
[ "$("$scratch/cmake/build/user")" = "$said" ] || fail "the program linked by find_package"

for schema in graph reshard-plan; do
    python3 -m json.tool "$prefix/share/crossmesh/schemas/$schema.schema.json" >"$scratch/schema" || fail "the schema of $schema"
done
[ -s "$prefix/share/doc/crossmesh/docs/tutorial-c.md" ] || fail "no documentation"
for command in autopar reshard-bench; do
    "$prefix/bin/$command" --version | grep -q "$VERSION" || fail "$command --version"
    [ -s "$prefix/share/man/man1/$command.1" ] || fail "no man page of $command"
done
cmp "$SOURCE_DIR/LICENSE" "$prefix/share/doc/crossmesh/LICENSE" || fail "not our licence"

# What the installation has written, and no file of others beside it.
touch "$prefix/bin/another"
find "$prefix" -type f -o -type l | grep -v another >"$scratch/manifest"
cmake -DMANIFEST="$scratch/manifest" -P "$SOURCE_DIR/cmake/Uninstall.cmake" >"$scratch/uninstall.log" 2>&1 || fail "uninstalling"
left=$(find "$prefix" -type f -o -type l -o -name '*crossmesh*' -o -name autopar)
[ "$left" = "$prefix/bin/another" ] || fail "uninstalling left $left"
echo "installed, moved, linked, run and removed"
