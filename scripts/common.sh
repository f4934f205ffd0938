# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Sourced by ./run and ./test: the steps that both begin with. POSIX sh.

say() {
    printf '\n== %s\n' "$*"
}

# as_root COMMAND...: runs it directly as root, else through sudo.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        echo "crossmesh: installing packages needs root or sudo: $*" >&2
        return 1
    fi
}

# packages GROUP...: names of the Debian packages of these groups, from the one list.
packages() {
    for group in "$@"; do
        awk -v group="$group" '$1 == group { print $2 }' packaging/debian-packages.txt
    done
}

# install_packages GROUP...: installs what is missing, and only then touches the package index.
install_packages() {
    missing=
    for name in $(packages "$@"); do
        state=$(dpkg-query -W -f '${db:Status-Abbrev}' "$name" 2>/dev/null || true)
        case $state in
        ii*) ;;
        *) missing="$missing $name" ;;
        esac
    done
    if [ -z "$missing" ]; then
        return 0
    fi
    say "installing Debian packages:$missing"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    # shellcheck disable=SC2086 # a list of words
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
}

# install_python_packages DIRECTORY LIST [OPTION...]: an environment of Python's, which follows a list of packages;
# options are pip's.
install_python_packages() {
    place=$1
    list=$2
    shift 2
    if cmp -s "$list" "$place/installed.txt"; then
        return 0
    fi
    say "installing Python packages into $place"
    [ -x "$place/bin/python3" ] || /usr/bin/python3 -m venv "$place" || return 1
    if "$place/bin/python3" -m pip install -q "$@" -r "$list"; then
        cp "$list" "$place/installed.txt"
        return 0
    fi
    # One that cannot be had must not take the tests of the others with it.
    grep -v '^#' "$list" | while read -r package; do
        "$place/bin/python3" -m pip install -q "$@" "$package" || echo "$place: no $package" >&2
    done
    return 1
}

# install_peers: the runtimes whose doors ./test long tries. What the first of them need is in build/python, which they
# see. vLLM has an environment of its own, of 4 GB, less the builds for CUDA that do not load beside a torch for CPUs.
install_peers() {
    install_python_packages build/peers-python packaging/python-packages-peers.txt --no-deps
    where="import sysconfig; print(sysconfig.get_path('purelib'))"
    build/python/bin/python3 -c "$where" >"$(build/peers-python/bin/python3 -c "$where")/build-python.pth"
    install_python_packages build/vllm-python packaging/python-packages-vllm.txt &&
        build/vllm-python/bin/python3 -m pip uninstall -q -y torchvision torchaudio torchcodec
}

# install_nccl: NCCL itself, whose loader then opens our plugin in tests. 300 MB, so only where WITH_NCCL=1 asks for it.
install_nccl() {
    if [ "${WITH_NCCL:-0}" = 1 ]; then
        say "installing NCCL into build/python"
        build/python/bin/python3 -m pip install -q --no-deps nvidia-nccl-cu12==2.28.9
    else
        echo "NCCL's own loader is not tried on the plugin: WITH_NCCL=1 ./test fetches it (300 MB)"
    fi
}

# build PRESET: configures (quick when nothing changed), then builds what changed. PRESET-long builds all of PRESET.
build() {
    say "building ($1)"
    mkdir -p build
    if ! cmake --preset "${1%-long}" >"build/$1.log" 2>&1; then
        cat "build/$1.log" >&2
        return 1
    fi
    cmake --build --preset "$1"
}
