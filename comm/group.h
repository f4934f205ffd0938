#include <crossmesh/group.h>
