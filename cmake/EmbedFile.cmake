# SPDX-License-Identifier: Apache-2.0
# Writes the file INPUT as the C string NAME into OUTPUT; without INPUT an empty one.
set(bytes "")
set(size 0)
if(INPUT)
    file(READ ${INPUT} hex HEX)
    string(LENGTH "${hex}" digits)
    math(EXPR size "${digits} / 2")
    string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
endif()
file(WRITE ${OUTPUT} "#include <stddef.h>

#include \"${HEADER}\"

const unsigned char ${NAME}[] = {
${bytes}0
};
const size_t ${NAME}_size = ${size};
")
