/* Prepended to the generated extension. Paths are set by CMake. */
#include "lucebox.h"
