# Huawei's side of an extension: torch_npu. Host files compile against the ACL headers in its wheel, without CANN.
#
# In the initial cache besides those of Archwright.cmake:
#   ARCHWRIGHT_TORCH_NPU  torch_npu's folder (never imported)
include_guard(GLOBAL)

set(ARCHWRIGHT_TORCH_LIBRARIES c10 torch_cpu torch_python)

# CANN and torch_npu stay outside of the wheel: they are found where they are installed when it is imported.
add_library(archwright_npu INTERFACE)
add_library(archwright::platform ALIAS archwright_npu)
target_include_directories(
    archwright_npu
    SYSTEM
    INTERFACE
        "${ARCHWRIGHT_TORCH_NPU}/include"
        "${ARCHWRIGHT_TORCH_NPU}/include/third_party/acl/inc"
        "${ARCHWRIGHT_TORCH_NPU}/include/third_party/hccl/inc"
)
target_link_libraries(archwright_npu INTERFACE "${ARCHWRIGHT_TORCH_NPU}/lib/libtorch_npu.so")

# archwright_device_code(<target>): device code needs CANN's compiler, which no build uses yet.
function(archwright_device_code target)
    if(ARCHWRIGHT_UNITS MATCHES "\\.asc(;|$)")
        message(FATAL_ERROR "no build of Ascend's device code yet: `archwright build ascend950 --host-only`")
    endif()
endfunction()
