# SPDX-License-Identifier: Apache-2.0
# Files as C. xm_embed_bytes(FILE bytes size): the bytes of a file as the inside of an initialiser, and their number.
# As a script: writes the file INPUT as the array NAME into OUTPUT; without INPUT an empty one.
function(xm_embed_bytes file bytes size)
    file(READ ${file} hex HEX)
    string(LENGTH "${hex}" digits)
    math(EXPR count "${digits} / 2")
    string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
    set(${bytes} "${hex}" PARENT_SCOPE)
    set(${size} ${count} PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
    set(bytes "")
    set(size 0)
    if(INPUT)
        xm_embed_bytes(${INPUT} bytes size)
    endif()
    file(WRITE ${OUTPUT} "#include <stddef.h>

#include \"${HEADER}\"

const unsigned char ${NAME}[] = {
${bytes}0
};
const size_t ${NAME}_size = ${size};
")
endif()
