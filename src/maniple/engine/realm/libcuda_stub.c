/* Stands in for NVIDIA's driver on machines that have none. Realm links against libcuda.so.1; it looks up all but these five functions
   when it needs them, which it does not once cuInit has failed. */

typedef int result;

enum { NO_DEVICE = 100 };

result cuInit(unsigned flags) { (void)flags; return NO_DEVICE; }
result cuMemFree_v2(unsigned long long pointer) { (void)pointer; return NO_DEVICE; }
result cuMemFreeHost(void *pointer) { (void)pointer; return NO_DEVICE; }
result cuGetErrorString(result error, const char **text) { (void)error; *text = "there is no CUDA driver"; return 0; }
result cuGetErrorName(result error, const char **text) { (void)error; *text = "CUDA_ERROR_NO_DEVICE"; return 0; }
