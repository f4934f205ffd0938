# SPDX-License-Identifier: Apache-2.0
# Completion of all commands in bash. What --help says is what is offered, so nothing is listed here a second time.
# shellcheck shell=bash

# _crossmesh_choices HELP OPTION: what may follow an option; nothing where it is a file or a number.
_crossmesh_choices() {
    tr -s ' \n' ' ' <<<"$1" | grep -oE -- "$2=[^ ]+( [^=]*One of [a-z0-9_, -]+\.)?" | head -1 |
        grep -oE '=[a-z0-9_-]+(\|[a-z0-9_-]+)+|One of .*\.' | sed 's/^One of //' | tr -d '=.' | tr '|,' '  '
}

_crossmesh() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} call=("${COMP_WORDS[0]}") help choices=
    # With readline's usual breaks "--option=value" is three words.
    if [ "$word" = = ]; then
        word=
    elif [ "$before" = = ]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    case ${call[0]##*/} in
    autopar | emulated-cluster)
        if [ "$COMP_CWORD" -eq 1 ]; then
            mapfile -t COMPREPLY < <(compgen -W "$("${call[0]}" --help 2>/dev/null | grep -oE '^  [a-z-]+ ') --help --version" -- "$word")
            return
        fi
        call+=("${COMP_WORDS[1]}")
        ;;
    esac
    help=$("${call[@]}" --help 2>/dev/null) || return
    case $before in --*) choices=$(_crossmesh_choices "$help" "$before") ;; esac
    if [ -n "$choices" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(grep -oE '^ +(-[a-zA-Z], )?--[a-z-]+' <<<"$help" | grep -oE -- '--[a-z-]+')" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}

complete -o filenames -F _crossmesh autopar reshard-bench transport-bench pipeline-bench emulated-cluster
