# How an AOT pack is made: one custom command an operation runs upstream's host code under the simulated device, one
# more collects the kernels.
#
# The build backend (python/archwright/packs.py) passes these in an initial cache:
#   ARCHWRIGHT_OPERATIONS       names, from the recipe     ARCHWRIGHT_CASES            case files, the first is run
#   ARCHWRIGHT_JIT_CACHE        folder of compiled kernels ARCHWRIGHT_WORKER           files of csrc/aot
#   ARCHWRIGHT_WORKER_COMMAND   launcher, environment and interpreter in front of the worker's arguments
#   ARCHWRIGHT_PACKING_COMMAND  what collects              ARCHWRIGHT_PACKAGE          the package in the wheel
include_guard(GLOBAL)

if(NOT ARCHWRIGHT_WORKER)
    message(
        FATAL_ERROR
        "ARCHWRIGHT_WORKER is not set: build through the PEP 517 backend (`pip wheel`) or `archwright aot`"
    )
endif()

# archwright_pack(): the whole pack, from the initial cache and what is beside the caller's CMakeLists.txt.
function(archwright_pack)
    list(TRANSFORM ARCHWRIGHT_CASES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/" OUTPUT_VARIABLE cases)
    list(GET cases 0 first)
    set(results)
    foreach(operation IN LISTS ARCHWRIGHT_OPERATIONS)
        set(facts "${CMAKE_BINARY_DIR}/cases/${operation}.json")
        set(result "${CMAKE_BINARY_DIR}/operations/${operation}.json")
        add_custom_command(
            OUTPUT "${result}"
            COMMAND
                ${ARCHWRIGHT_WORKER_COMMAND} --cases "${first}" --cache "${ARCHWRIGHT_JIT_CACHE}/${operation}" -c
                "${facts}" -o "${result}"
            DEPENDS "${facts}" ${cases} ${ARCHWRIGHT_WORKER} "${CMAKE_BINARY_DIR}/environment.json"
            COMMENT "Compiling the kernels of ${operation}"
            VERBATIM
        )
        list(APPEND results "${result}")
    endforeach()

    set(manifest "${CMAKE_BINARY_DIR}/pack/${ARCHWRIGHT_PACKAGE}/manifest.json")
    add_custom_command(
        OUTPUT "${manifest}"
        COMMAND ${ARCHWRIGHT_PACKING_COMMAND} "${CMAKE_BINARY_DIR}" "${ARCHWRIGHT_JIT_CACHE}" "${ARCHWRIGHT_PACKAGE}"
        DEPENDS ${results} "${CMAKE_BINARY_DIR}/pack.json"
        COMMENT "Collecting the kernels of ${PROJECT_NAME}"
        VERBATIM
    )
    add_custom_target(pack ALL DEPENDS "${manifest}")
    install(DIRECTORY "${CMAKE_BINARY_DIR}/pack/" DESTINATION . USE_SOURCE_PERMISSIONS)
endfunction()
