// One function with external linkage in each device file, before everything else (nvcc's -include).
//
// nvcc makes the names of device code with internal linkage unique: by the first such function of the file when there
// is one, else by the working folder and its own process number, which would differ in every build. Only host code gets
// it, and hidden, so the module exports nothing more.
__attribute__((visibility("hidden"))) void ARCHWRIGHT_ANCHOR() {}
