#include <crossmesh/version.h>
