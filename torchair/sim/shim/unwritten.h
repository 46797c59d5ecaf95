// Detection of uninitialized and freed memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace sim {

inline std::atomic<bool> checks_memory{false};

class Unwritten {
 public:
  void add(const void* address, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    blocks_[static_cast<const char*>(address)] = std::vector<char>(bytes, 1);
  }

  void remove(const void* address) {
    std::lock_guard<std::mutex> guard(mutex_);
    blocks_.erase(static_cast<const char*>(address));
  }

  void write(const at::Tensor& tensor) {
    visit(tensor, [](char* begin, size_t bytes) { std::fill_n(begin, bytes, 0); });
  }

  // Return the number of uninitialized bytes of a tensor.
  size_t count(const at::Tensor& tensor) {
    size_t found = 0;
    visit(tensor, [&](const char* begin, size_t bytes) { found += std::count(begin, begin + bytes, 1); });
    return found;
  }

  // Copied bytes are as initialized as their source.
  void carry(const void* from, const void* to, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto source = blocks_.find(static_cast<const char*>(from)), target = blocks_.find(static_cast<const char*>(to));
    if (target == blocks_.end()) {
      return;
    }
    bytes = std::min(bytes, target->second.size());
    if (source == blocks_.end()) {
      std::fill_n(target->second.begin(), bytes, 0);
    } else {
      std::copy_n(source->second.begin(), std::min(bytes, source->second.size()), target->second.begin());
    }
  }

  void clear() {
    std::lock_guard<std::mutex> guard(mutex_);
    blocks_.clear();
  }

 private:
  // Visit every contiguous range of bytes of a tensor in known blocks.
  template <class Act>
  void visit(const at::Tensor& tensor, const Act& act) {
    std::lock_guard<std::mutex> guard(mutex_);
    const char* memory = static_cast<const char*>(tensor.storage().data());
    auto block = blocks_.upper_bound(memory);
    if (block == blocks_.begin() || memory >= (--block)->first + block->second.size()) {
      return;
    }
    const auto size = static_cast<int64_t>(tensor.dtype().itemsize());
    const int64_t first = (memory - block->first) + tensor.storage_offset() * size;
    const bool is_dense = tensor.is_contiguous();
    const int64_t dims = is_dense ? 0 : tensor.dim();
    std::vector<int64_t> at(dims, 0);
    while (true) {
      int64_t begin = first;
      for (int64_t dim = 0; dim < dims; ++dim) {
        begin += at[dim] * tensor.stride(dim) * size;
      }
      const int64_t bytes = is_dense ? tensor.numel() * size : size;
      if (begin + bytes <= static_cast<int64_t>(block->second.size())) {  // otherwise its memory was freed
        act(block->second.data() + begin, bytes);
      }
      int64_t dim = dims - 1;
      while (dim >= 0 && ++at[dim] == tensor.size(dim)) {
        at[dim--] = 0;
      }
      if (dim < 0) {
        return;
      }
    }
  }

  std::mutex mutex_;
  std::map<const char*, std::vector<char>> blocks_;
};

inline Unwritten& unwritten() {
  static Unwritten one;
  return one;
}

}  // namespace sim
