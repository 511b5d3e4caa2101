# Huawei's side of an extension: torch_npu, CANN, and how device code gets to CANN's compiler, bisheng.
#
# In the initial cache besides those of Archwright.cmake:
#   ARCHWRIGHT_TORCH_NPU  torch_npu's folder (never imported)
# and, where device code is compiled (no machine with CANN has run that for us: not verified here):
#   ARCHWRIGHT_NPU_ARCH       dav-3510                    ARCHWRIGHT_BISHENG         the compiler
#   ARCHWRIGHT_CANN_INCLUDES  folders                     ARCHWRIGHT_CANN_LIBRARIES  a folder
#   ARCHWRIGHT_ASC            folder of CANN's CMake package ASC, empty where it has none
#   ARCHWRIGHT_LAUNCHER       what waits for a turn in the pool
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

# CANN's own CMake language, where it has one. It has to be found before it is enabled, and nowhere but in the CANN that
# was chosen, whatever ASC_DIR says.
if(ARCHWRIGHT_ASC)
    set(ASC_DIR "${ARCHWRIGHT_ASC}")
    find_package(ASC REQUIRED PATHS "${ARCHWRIGHT_ASC}" NO_DEFAULT_PATH)
    set(CMAKE_ASC_COMPILER "${ARCHWRIGHT_BISHENG}")
    set(CMAKE_ASC_ARCHITECTURES "${ARCHWRIGHT_NPU_ARCH}")
    enable_language(ASC)
endif()

# archwright_device_code(<target> <option>...): compiles the .asc units with these options and with the target's own
# definitions and include folders, as upstream's setup.py has one list for every file. Links CANN's runtime.
function(archwright_device_code target)
    set(units ${ARCHWRIGHT_UNITS})
    list(FILTER units INCLUDE REGEX "\\.asc$")
    if(NOT units)
        return()
    endif()
    set(options -std=c++20 -fPIC ${ARGN})
    foreach(map IN ITEMS "${ARCHWRIGHT_SOURCE}=/src/${PROJECT_NAME}" "${ARCHWRIGHT_ENVIRONMENT}=/env")
        list(APPEND options "-ffile-prefix-map=${map}")
    endforeach()
    if(ARCHWRIGHT_ASC)
        archwright_asc_objects()
    else()
        archwright_bisheng_objects()
    endif()
    target_sources(${target} PRIVATE ${objects})
    target_link_libraries(${target} PRIVATE "${ARCHWRIGHT_CANN_LIBRARIES}/libascendc_runtime.a")
endfunction()

# Both set `objects` from `target`, `units` and `options`.
#
# By CANN's language; the pool's launcher is a property, since CMake knows no launcher of a foreign language.
macro(archwright_asc_objects)
    list(TRANSFORM units PREPEND "${ARCHWRIGHT_SOURCE}/" OUTPUT_VARIABLE sources)
    add_library(${target}_asc OBJECT ${sources})
    list(JOIN ARCHWRIGHT_LAUNCHER " " launcher)
    set_target_properties(${target}_asc PROPERTIES POSITION_INDEPENDENT_CODE ON RULE_LAUNCH_COMPILE "${launcher}")
    target_compile_options(${target}_asc PRIVATE ${options})
    target_compile_definitions(${target}_asc PRIVATE $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
    target_include_directories(${target}_asc PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_include_directories(${target}_asc SYSTEM PRIVATE ${ARCHWRIGHT_CANN_INCLUDES})
    target_link_libraries(${target}_asc PRIVATE archwright::torch archwright::platform Python::Module)
    set(objects $<TARGET_OBJECTS:${target}_asc>)
endmacro()

# By rules of our own, one a file.
macro(archwright_bisheng_objects)
    get_target_property(definitions ${target} COMPILE_DEFINITIONS)
    list(TRANSFORM definitions PREPEND -D)
    get_target_property(includes ${target} INCLUDE_DIRECTORIES)
    list(TRANSFORM includes PREPEND -I)
    list(TRANSFORM options REPLACE "^SHELL:" "")
    list(JOIN options " " options)
    separate_arguments(options UNIX_COMMAND "${options}")
    set(folders
        ${ARCHWRIGHT_CANN_INCLUDES}
        "${ARCHWRIGHT_TORCH_NPU}/include"
        "${ARCHWRIGHT_TORCH}/include"
        "${ARCHWRIGHT_TORCH}/include/torch/csrc/api/include"
        ${Python_INCLUDE_DIRS}
    )
    list(TRANSFORM folders REPLACE "^(.+)$" "-isystem;\\1" OUTPUT_VARIABLE system)
    set(objects)
    foreach(unit IN LISTS units)
        set(source "${ARCHWRIGHT_SOURCE}/${unit}")
        set(object "${CMAKE_CURRENT_BINARY_DIR}/asc/${unit}.o")
        add_custom_command(
            OUTPUT "${object}"
            COMMAND
                ${ARCHWRIGHT_LAUNCHER} "${ARCHWRIGHT_BISHENG}" --asc-aicore-lang --npu-arch=${ARCHWRIGHT_NPU_ARCH}
                ${options} ${definitions} -DTORCH_API_INCLUDE_EXTENSION_H ${includes} ${system} -MD -MF "${object}.d" -c
                "${source}" -o "${object}"
            DEPENDS "${source}" "${ARCHWRIGHT_BISHENG}"
            DEPFILE "${object}.d"
            COMMENT "Compiling ${unit} with bisheng"
            VERBATIM
        )
        set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
        list(APPEND objects "${object}")
    endforeach()
endmacro()
