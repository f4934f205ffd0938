#!/bin/sh
# Installs into a scratch folder and uses the result as a stranger would: by pkg-config, by find_package, each
# public header alone, the man pages, the commands; and looks at what the libraries export.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/prefix
flags=${SANITIZE:+-fsanitize=$SANITIZE}

fail() {
    echo "FAILED: $*"
    exit 1
}

cmake --install "$BUILD_DIR" --prefix "$prefix" >"$scratch/install.log" || fail "installing"
lib=$(dirname "$(find "$prefix" -name libcrossmesh.so)")

for library in crossmesh:xm_ autopar:ap_; do
    name=${library%:*}
    letters=${library#*:}
    strange=$(nm -D --defined-only "$lib/lib$name.so" | awk '{ print $3 }' | sed 's/@.*//' |
        grep -v -e "^$letters" -e "^autopar_planner_v1$" -e "^XM_0.1" -e "^AP_0.2" -e '^_' || true)
    [ -n "$SANITIZE" ] || [ -z "$strange" ] || fail "lib$name.so exports $strange"
    nm -D --defined-only "$lib/lib$name.so" | grep -q " $letters" || fail "lib$name.so exports nothing"
done

# pkg-config writes the prefix it was configured with; --define-variable moves it here.
export PKG_CONFIG_PATH="$lib/pkgconfig"
pc() {
    pkg-config --define-variable=prefix="$prefix" "$@"
}
[ "$(pc --modversion crossmesh)" = "$VERSION" ] || fail "pkg-config has another version"

find "$prefix/include/crossmesh" -name '*.h' | while read -r header; do
    relative=${header#"$prefix/include/crossmesh/"}
    printf '#include "%s"\nint main(void) { return 0; }\n' "$relative" >"$scratch/header.c"
    # shellcheck disable=SC2046 # flags are words
    "$CC" -std=c17 -Wall -Wextra -Werror -fsyntax-only $(pc --cflags autopar) "$scratch/header.c" ||
        fail "$relative does not compile alone"
done || exit 1

cat >"$scratch/user.c" <<'EOF'
#include <stdio.h>

#include <autopar.h>
#include "resharding/plan.h"

int main(void)
{
    xm_mesh_t *mesh;
    char text[32];

    if (xm_mesh_parse("2x4", NULL, 8, &mesh) != XM_OK) {
        return 1;
    }
    printf("%s\n", xm_mesh_format_ranks(mesh, text, sizeof(text)));
    xm_mesh_destroy(mesh);
    ap_plan_destroy(NULL);
    return 0;
}
EOF
# shellcheck disable=SC2046,SC2086 # flags are words
"$CC" -std=c17 $flags -o "$scratch/user" "$scratch/user.c" $(pc --cflags --libs autopar) ||
    fail "linking by pkg-config"
[ "$(LD_LIBRARY_PATH=$lib "$scratch/user")" = 8-15 ] || fail "the program linked by pkg-config"

mkdir "$scratch/cmake"
cat >"$scratch/cmake/CMakeLists.txt" <<'EOF'
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(crossmesh REQUIRED)
add_executable(user ../user.c)
target_link_libraries(user PRIVATE crossmesh::autopar crossmesh::crossmesh)
EOF
if ! cmake -G Ninja -S "$scratch/cmake" -B "$scratch/cmake/build" -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_C_COMPILER="$CC" -DCMAKE_C_FLAGS="$flags" >"$scratch/cmake.log" 2>&1 ||
    ! cmake --build "$scratch/cmake/build" >>"$scratch/cmake.log" 2>&1; then
    cat "$scratch/cmake.log"
    fail "find_package(crossmesh)"
fi
[ "$("$scratch/cmake/build/user")" = 8-15 ] || fail "the program linked by find_package"

for command in autopar reshard-bench; do
    "$prefix/bin/$command" --version | grep -q "$VERSION" || fail "$command --version"
    [ -s "$prefix/share/man/man1/$command.1" ] || fail "no man page of $command"
done
echo "installed, linked and run"
