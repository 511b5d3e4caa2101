# NVIDIA's side of an extension: the toolkit view, NCCL, the driver's stub, and what device code needs.
#
# In the initial cache besides those of Archwright.cmake:
#   ARCHWRIGHT_GENCODES `arch=...,code=...` values   ARCHWRIGHT_NCCL NCCL's root   CUDAToolkit_ROOT the toolkit view
include_guard(GLOBAL)

find_package(CUDAToolkit REQUIRED)
if(ARCHWRIGHT_UNITS MATCHES "\\.cu(;|$)")
    enable_language(CUDA)
endif()
set(ARCHWRIGHT_TORCH_LIBRARIES
    c10
    c10_cuda
    torch_cpu
    torch_cuda
    torch_python
)

# NCCL by its soname, which is all that the packages have.
add_library(archwright_nccl INTERFACE)
add_library(archwright::nccl ALIAS archwright_nccl)
target_include_directories(archwright_nccl SYSTEM INTERFACE "${ARCHWRIGHT_NCCL}/include")
target_link_libraries(archwright_nccl INTERFACE "${ARCHWRIGHT_NCCL}/lib/libnccl.so.2")

# CCCL lives under include/cccl since CUDA 13; host files need it too (case A5).
add_library(archwright_cuda INTERFACE)
add_library(archwright::platform ALIAS archwright_cuda)
target_include_directories(
    archwright_cuda
    SYSTEM
    INTERFACE "${CUDAToolkit_ROOT}/include" "${CUDAToolkit_ROOT}/include/cccl"
)
target_link_libraries(archwright_cuda INTERFACE CUDA::cudart)

# The driver: an empty stub with its soname. --no-as-needed, since a stub without symbols would be dropped.
add_library(archwright_driver INTERFACE)
add_library(archwright::driver ALIAS archwright_driver)
target_link_options(
    archwright_driver
    INTERFACE "LINKER:--push-state,--no-as-needed,${CUDAToolkit_ROOT}/lib64/stubs/libcuda.so,--pop-state"
)

# archwright_device_code(<target>): what its device code is compiled with besides the options of the component.
function(archwright_device_code target)
    foreach(gencode IN LISTS ARCHWRIGHT_GENCODES)
        target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode ${gencode}>")
    endforeach()
    # Names of device code with internal linkage carry hashes: of the source's absolute path, which is given a fixed one
    # (the option is undocumented; nvcc itself passes it to its front end, see `nvcc --dryrun`, and the last one wins),
    # and of what anchor.cuh fixes.
    foreach(unit IN LISTS ARCHWRIGHT_UNITS)
        if(unit MATCHES "\\.cu$")
            string(MAKE_C_IDENTIFIER "archwright_anchor_${unit}" anchor)
            set_property(
                SOURCE "${ARCHWRIGHT_SOURCE}/${unit}"
                PROPERTY
                    COMPILE_OPTIONS
                        "-Xcudafe=--orig_src_path_name=/src/${PROJECT_NAME}/${unit}"
                        -include
                        "${ARCHWRIGHT_CMAKE}/anchor.cuh"
                        "-DARCHWRIGHT_ANCHOR=${anchor}"
            )
        endif()
    endforeach()
endfunction()
