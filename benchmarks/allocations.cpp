// Counts the bytes of PyTorch's CPU tensors, on all threads: an allocator that stands before PyTorch's own.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>

namespace {

std::atomic<int64_t> live{0}, peak{0};

void add(int64_t bytes) {
  const int64_t now = live.fetch_add(bytes) + bytes;
  int64_t seen = peak.load();
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
}

// The size stands before the data, which stays aligned.
constexpr size_t kHeader = c10::gAlignment;

void release(void* data) {
  if (data == nullptr) return;
  char* block = static_cast<char*>(data) - kHeader;
  live.fetch_sub(*reinterpret_cast<int64_t*>(block));
  c10::free_cpu(block);
}

struct Counting final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    char* block = static_cast<char*>(c10::alloc_cpu(bytes + kHeader));
    *reinterpret_cast<int64_t*>(block) = static_cast<int64_t>(bytes);
    add(static_cast<int64_t>(bytes));
    return {block + kHeader, block + kHeader, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

Counting counting;

}  // namespace

extern "C" {

void counting_start() { c10::SetCPUAllocator(&counting, 1); }
int64_t counting_live() { return live.load(); }
int64_t counting_peak() { return peak.load(); }
void counting_reset() { peak.store(live.load()); }
}
