# A back end that was asked for and cannot be built stops here, before anything is compiled, and says where its SDK
# was looked for. Upstream's own checks come later and some of them fall back to the CPU.

set(LUCEBOX_BACKENDS_TEXT "CPU")

if(GGML_HIP)
  find_program(LUCEBOX_HIPCONFIG hipconfig HINTS "$ENV{ROCM_PATH}/bin" "$ENV{HIP_PATH}/bin" /opt/rocm/bin)
  if(NOT LUCEBOX_HIPCONFIG)
    message(FATAL_ERROR
      "GGML_HIP=ON, but the ROCm SDK was not found: no hipconfig in \$ROCM_PATH/bin ('$ENV{ROCM_PATH}'), "
      "\$HIP_PATH/bin ('$ENV{HIP_PATH}'), /opt/rocm/bin or PATH.\n"
      "Install the ROCm development packages or set ROCM_PATH, or build without -DGGML_HIP=ON.")
  endif()
  string(APPEND LUCEBOX_BACKENDS_TEXT ", HIP")
endif()

if(GGML_CUDA)
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND)
    message(FATAL_ERROR
      "GGML_CUDA=ON, but the CUDA toolkit was not found: no nvcc in \$CUDACXX ('$ENV{CUDACXX}'), "
      "\$CUDA_PATH/bin ('$ENV{CUDA_PATH}'), /usr/local/cuda/bin or PATH.\n"
      "Install the toolkit or set CUDACXX, or build without -DGGML_CUDA=ON.")
  endif()
  string(APPEND LUCEBOX_BACKENDS_TEXT ", CUDA ${CUDAToolkit_VERSION}")
endif()

if(GGML_VULKAN)
  find_package(Vulkan QUIET COMPONENTS glslc)
  if(NOT Vulkan_FOUND OR NOT Vulkan_glslc_FOUND)
    message(FATAL_ERROR
      "GGML_VULKAN=ON, but the Vulkan SDK was not found: headers '${Vulkan_INCLUDE_DIR}', "
      "loader '${Vulkan_LIBRARY}', glslc '${Vulkan_GLSLC_EXECUTABLE}' (\$VULKAN_SDK is '$ENV{VULKAN_SDK}').\n"
      "Install the Vulkan headers, loader and glslc or set VULKAN_SDK, or build without -DGGML_VULKAN=ON.")
  endif()
  string(APPEND LUCEBOX_BACKENDS_TEXT ", Vulkan")
endif()
