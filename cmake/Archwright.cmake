# What every component needs: torch, the vendor's side (ArchwrightCuda.cmake or ArchwrightAscend.cmake), and one function
# that defines a wheel's extension.
#
# The build backend (python/archwright/backend.py) passes these in an initial cache:
#   ARCHWRIGHT_TARGET    target name                        ARCHWRIGHT_SOURCE    upstream's verified source tree
#   ARCHWRIGHT_UNITS     translation units, from the recipe ARCHWRIGHT_VENDOR    nvidia or huawei
#   ARCHWRIGHT_TORCH     torch's folder (never imported)    ARCHWRIGHT_GUARD     folder with the import guard
#   ARCHWRIGHT_HOST_ONLY compile host files, make no wheel  ARCHWRIGHT_ENVIRONMENT the locked environment
# and what the vendor's file names.
include_guard(GLOBAL)

if(NOT ARCHWRIGHT_SOURCE)
    message(
        FATAL_ERROR
        "ARCHWRIGHT_SOURCE is not set: build through the PEP 517 backend (`pip wheel`) or `archwright build`"
    )
endif()

find_package(Python 3.12 REQUIRED COMPONENTS Interpreter Development.Module)
if(ARCHWRIGHT_VENDOR STREQUAL "huawei")
    include("${CMAKE_CURRENT_LIST_DIR}/ArchwrightAscend.cmake")
else()
    include("${CMAKE_CURRENT_LIST_DIR}/ArchwrightCuda.cmake")
endif()

# torch: headers and libraries of the runtime half, found where the environment says and nowhere else.
add_library(archwright_torch INTERFACE)
add_library(archwright::torch ALIAS archwright_torch)
target_include_directories(
    archwright_torch
    SYSTEM
    INTERFACE "${ARCHWRIGHT_TORCH}/include" "${ARCHWRIGHT_TORCH}/include/torch/csrc/api/include"
)
foreach(library IN LISTS ARCHWRIGHT_TORCH_LIBRARIES)
    target_link_libraries(archwright_torch INTERFACE "${ARCHWRIGHT_TORCH}/lib/lib${library}.so")
endforeach()
target_compile_definitions(archwright_torch INTERFACE TORCH_API_INCLUDE_EXTENSION_H)

# archwright_extension(<dotted module>
#   [INCLUDES dir...] [DEFINITIONS def...] [CXX_OPTIONS opt...] [CUDA_OPTIONS opt...] [ASC_OPTIONS opt...]
#   [LIBRARIES target...] [PRECOMPILE header...])
#
# Defines the extension module from ARCHWRIGHT_UNITS and installs it where its dotted name says. With
# ARCHWRIGHT_HOST_ONLY it only compiles the units that are there.
function(archwright_extension module)
    cmake_parse_arguments(
        PARSE_ARGV 1
        arg
        ""
        ""
        "INCLUDES;DEFINITIONS;CXX_OPTIONS;CUDA_OPTIONS;ASC_OPTIONS;LIBRARIES;PRECOMPILE"
    )
    string(REPLACE "." "/" path "${module}")
    get_filename_component(folder "${path}" DIRECTORY)
    get_filename_component(name "${path}" NAME)

    list(TRANSFORM ARCHWRIGHT_UNITS PREPEND "${ARCHWRIGHT_SOURCE}/" OUTPUT_VARIABLE sources)
    list(FILTER sources EXCLUDE REGEX "\\.asc$") # archwright_device_code compiles those
    if(ARCHWRIGHT_HOST_ONLY)
        add_library(extension OBJECT ${sources})
        target_link_libraries(extension PRIVATE Python::Module)
        set_target_properties(extension PROPERTIES POSITION_INDEPENDENT_CODE ON)
    else()
        python_add_library(extension MODULE WITH_SOABI ${sources})
    endif()
    set_target_properties(
        extension
        PROPERTIES
            OUTPUT_NAME "${name}"
            CXX_STANDARD 20
            CUDA_STANDARD 20
            CXX_STANDARD_REQUIRED ON
            CUDA_STANDARD_REQUIRED ON
            CXX_EXTENSIONS OFF
            CUDA_EXTENSIONS OFF
            CXX_SCAN_FOR_MODULES OFF
            CUDA_RUNTIME_LIBRARY Shared
            SKIP_BUILD_RPATH ON
    )
    target_include_directories(extension PRIVATE ${arg_INCLUDES})
    target_compile_definitions(extension PRIVATE TORCH_EXTENSION_NAME=${name} ${arg_DEFINITIONS})
    foreach(option IN LISTS arg_CXX_OPTIONS)
        target_compile_options(extension PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${option}>")
    endforeach()
    foreach(option IN LISTS arg_CUDA_OPTIONS)
        target_compile_options(extension PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${option}>")
    endforeach()
    archwright_device_code(extension ${arg_ASC_OPTIONS})

    # No path of this machine in the objects: asserts and TORCH_CHECK messages carry __FILE__. Only host files see the
    # build folder (through the precompiled header), and only there does ccache ignore the option's value.
    target_compile_options(
        extension
        PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${CMAKE_BINARY_DIR}=/build/${PROJECT_NAME}>"
    )
    # Python's own headers use assert. -fmacro-prefix-map, unlike -ffile-prefix-map, is part of ccache's key.
    target_compile_options(
        extension
        PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${Python_INCLUDE_DIRS}=/python>"
    )
    foreach(map IN ITEMS "${ARCHWRIGHT_SOURCE}=/src/${PROJECT_NAME}" "${ARCHWRIGHT_ENVIRONMENT}=/env")
        target_compile_options(
            extension
            PRIVATE
                "$<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${map}>"
                "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffile-prefix-map=${map}>"
        )
    endforeach()

    # libstdc++ before torch: libtorch_cpu.so exports parts of its own static copy (std::filesystem), unversioned, and
    # whoever comes first on the line is bound to.
    target_link_libraries(extension PRIVATE stdc++ ${arg_LIBRARIES} archwright::torch archwright::platform)
    # What GCC's own archive adds to an older libstdc++.so stays private to this module.
    target_link_options(extension PRIVATE LINKER:--as-needed LINKER:--exclude-libs,libstdc++.a)
    # Stripped by the linker, before it computes the build id: nvcc's symbols for temporary files hold process numbers.
    target_link_options(extension PRIVATE LINKER:--strip-all LINKER:--build-id=sha1)
    if(arg_PRECOMPILE)
        # ccache can only cache users of a precompiled header with -fpch-preprocess
        target_compile_options(extension PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>")
        list(TRANSFORM arg_PRECOMPILE REPLACE "^(.+)$" "$<$<COMPILE_LANGUAGE:CXX>:\\1>")
        target_precompile_headers(extension PRIVATE ${arg_PRECOMPILE})
    endif()
    if(NOT ARCHWRIGHT_HOST_ONLY)
        install(TARGETS extension LIBRARY DESTINATION "${folder}")
    endif()
endfunction()

# archwright_package(<folder>...): installs upstream's Python packages as they are, and the import guard into the first.
function(archwright_package first)
    foreach(folder IN ITEMS ${first} ${ARGN})
        install(DIRECTORY "${ARCHWRIGHT_SOURCE}/${folder}" DESTINATION . PATTERN "__pycache__" EXCLUDE)
    endforeach()
    install(FILES "${ARCHWRIGHT_GUARD}/_archwright.py" "${ARCHWRIGHT_GUARD}/_archwright.json" DESTINATION "${first}")
endfunction()
