#pragma once

#include "device.h"

namespace gpu_kernels {

// Checks what each case promises, a line each; the number of cases that fail.
int check(const Device & device, const std::vector<Case> & cases);

} // namespace gpu_kernels
