// A CPU allocator that counts: it stands before torch's own and knows, to the byte, what every
// storage, temporary and workspace that torch takes from it has asked for.
//
// Called by ctypes from counting_allocator.py. Blocks that were there before the counter was
// installed keep their own deleters and are not counted; blocks that are alive when it is taken
// away again come back through the deleter here.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace {

constexpr int kMarks = 8;
constexpr uint8_t kPriority = 255;

c10::Allocator* inner = nullptr;
std::mutex guard;
std::unordered_map<void*, int64_t>& sizes() {
  static auto* map = new std::unordered_map<void*, int64_t>();  // outlives every static tensor
  return *map;
}
int64_t current_bytes = 0;
int64_t allocation_count = 0;
int64_t peaks[kMarks] = {};

void release(void* block) {
  {
    std::lock_guard<std::mutex> lock(guard);
    auto found = sizes().find(block);
    if (found != sizes().end()) {
      current_bytes -= found->second;
      sizes().erase(found);
    }
  }
  inner->raw_deallocate(block);
}

struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* block = inner->raw_allocate(bytes);
    if (block != nullptr) {
      std::lock_guard<std::mutex> lock(guard);
      sizes()[block] = static_cast<int64_t>(bytes);
      current_bytes += static_cast<int64_t>(bytes);
      ++allocation_count;
      for (int64_t& peak : peaks) {
        if (current_bytes > peak) peak = current_bytes;
      }
    }
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

CountingAllocator counter;

}  // namespace

extern "C" {

// 0: installed; 1: torch's allocator has no plain deleter, so it cannot be wrapped.
int counting_install() {
  c10::Allocator* before = c10::GetCPUAllocator();
  if (before == &counter) return 0;
  if (before->raw_deleter() == nullptr) return 1;
  inner = before;
  c10::SetCPUAllocator(&counter, kPriority);
  return 0;
}

void counting_remove() {
  if (inner != nullptr && c10::GetCPUAllocator() == &counter) {
    c10::SetCPUAllocator(inner, kPriority);
  }
}

int counting_marks() { return kMarks; }

int64_t counting_current() {
  std::lock_guard<std::mutex> lock(guard);
  return current_bytes;
}

int64_t counting_allocations() {
  std::lock_guard<std::mutex> lock(guard);
  return allocation_count;
}

// The highest current since this mark was last reset; every mark has a peak of its own.
int64_t counting_peak(int mark) {
  std::lock_guard<std::mutex> lock(guard);
  return peaks[mark];
}

void counting_reset(int mark) {
  std::lock_guard<std::mutex> lock(guard);
  peaks[mark] = current_bytes;
}

}  // extern "C"
