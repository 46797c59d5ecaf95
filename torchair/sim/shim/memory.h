// Memory of the simulated devices: allocated on the backing device, counted in bytes, and limited like device memory.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "unwritten.h"

namespace sim {

constexpr c10::DeviceType NPU = c10::DeviceType::PrivateUse1;
constexpr int MAX_DEVICES = 64;
constexpr size_t UNIT = 512;  // allocation granularity of device memory
// largest block with a separate area in a pool, so that small blocks do not split large ones
constexpr size_t SMALL = size_t(64) << 10;
constexpr size_t SMALL_SEGMENT = size_t(1) << 20;

// The backing device, the number of devices, and the memory of each.
struct Setup {
  c10::DeviceType backing = c10::DeviceType::CPU;
  c10::DeviceIndex devices = 8;
  size_t memory = size_t(64) << 30;
};

inline Setup& setup() {
  static Setup one;
  return one;
}

inline c10::Device backing_device() {
  return c10::Device(setup().backing, setup().backing == c10::DeviceType::CPU ? -1 : 0);
}

inline thread_local c10::DeviceIndex current_device = 0;

inline size_t rounded(size_t bytes) {
  return (bytes + UNIT - 1) / UNIT * UNIT;
}

using Count = c10::CachingAllocator::Stat;  // current, peak, allocated and freed

// Memory of one graph pool: a later graph reuses all or part of the memory that another one frees during capture. A
// block stays with its first stream, because it might still be in use when another stream gets it.
struct Pool {
  struct Segment {
    c10::DataPtr memory;
    bool is_small;
    c10::StreamId stream;
    uint64_t pool;  // number of its pool
  };
  struct Piece {
    std::shared_ptr<Segment> segment;
    size_t bytes;
  };

  std::map<char*, Piece> free;
  int users = 0;  // captures and graphs
  uint64_t number = ++last;  // distinguishes pools with the same handle, because a handle is reused after its pool ends
  inline static std::atomic<uint64_t> last{0};

  // Return the smallest free block that is large enough, split to size, if there is one.
  std::optional<std::pair<char*, Piece>> take(size_t bytes, c10::StreamId stream) {
    auto best = free.end();
    for (auto at = free.begin(); at != free.end(); ++at) {
      const Segment& segment = *at->second.segment;
      if (segment.stream == stream && segment.is_small == (bytes <= SMALL) && at->second.bytes >= bytes &&
          (best == free.end() || at->second.bytes < best->second.bytes)) {
        best = at;
      }
    }
    if (best == free.end()) {
      return std::nullopt;
    }
    char* const address = best->first;
    const Piece found = best->second;
    free.erase(best);
    if (found.bytes > bytes) {
      free.emplace(address + bytes, Piece{found.segment, found.bytes - bytes});
    }
    return std::make_pair(address, Piece{found.segment, bytes});
  }

  // Free a block and merge it with its neighbors.
  void give(char* address, Piece piece) {
    auto next = free.lower_bound(address);
    if (next != free.end() && next->second.segment == piece.segment && address + piece.bytes == next->first) {
      piece.bytes += next->second.bytes;
      next = free.erase(next);
    }
    if (next != free.begin()) {
      auto before = std::prev(next);
      if (before->second.segment == piece.segment && before->first + before->second.bytes == address) {
        before->second.bytes += piece.bytes;
        return;
      }
    }
    free.emplace(address, std::move(piece));
  }

  size_t free_bytes() const {
    size_t all = 0;
    for (const auto& [address, piece] : free) {
      all += piece.bytes;
    }
    return all;
  }
};

using PoolId = std::pair<uint64_t, uint64_t>;

// State of one device's memory.
struct Memory {
  std::mutex mutex;
  Count allocations, allocated, requested, reserved, segments;
  int64_t out_of_memory = 0;
  size_t limit = 0;
  std::map<PoolId, Pool> pools;
};

inline Memory& memory_of(c10::DeviceIndex device) {
  static std::array<Memory, MAX_DEVICES> all;
  return all.at(device);
}

// One allocation. It owns memory of the backing device, holds a storage of the backing device that a kernel created, or
// is a block of a pool.
struct Block {
  c10::DataPtr memory;
  size_t requested, bytes;
  c10::DeviceIndex device;
  PoolId pool{0, 0};
  std::shared_ptr<Pool::Segment> segment;
  uint64_t capture = 0;  // created during capture of this graph
  c10::StreamId stream = 0;  // the stream that may reuse the memory after it is freed
  std::set<c10::StreamId> users;  // other streams, from `record_stream`
};

inline std::string in_words(double bytes) {
  const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  char text[64];
  std::snprintf(text, sizeof text, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
  return text;
}

// Count bytes before they are used; raise if the device is out of memory.
inline void count_in(Memory& memory, c10::DeviceIndex device, size_t requested, size_t bytes, bool is_reserved) {
  const size_t limit = memory.limit ? memory.limit : setup().memory;
  int64_t cached = memory.reserved.current - memory.allocated.current;
  for (const auto& [id, pool] : memory.pools) {
    cached -= static_cast<int64_t>(pool.free_bytes());  // reserved for graphs
  }
  if (static_cast<size_t>(memory.allocated.current) + bytes > limit) {
    ++memory.out_of_memory;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "NPU out of memory. Tried to allocate ", in_words(bytes), ". NPU ", int(device),
        " has a total capacity of ", in_words(limit), ", of which ", in_words(limit - memory.allocated.current),
        " is free; ", in_words(memory.allocated.current), " is allocated by PyTorch (simulated device)");
  }
  memory.allocations.increase(1);
  memory.allocated.increase(bytes);
  memory.requested.increase(requested);
  if (!is_reserved) {
    const int64_t more = static_cast<int64_t>(bytes) - std::max<int64_t>(cached, 0);
    if (more > 0) {
      memory.reserved.increase(more);
      memory.segments.increase(1);
    }
  }
}

void forget_place(const void* address);
void forget_accesses(const Block& block);
c10::StreamId stream_now(c10::DeviceIndex device);

inline void free_block(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  forget_place(block->memory.get());
  forget_accesses(*block);
  if (checks_memory.load(std::memory_order_relaxed)) {
    unwritten().remove(block->memory.get());
  }
  Memory& memory = memory_of(block->device);
  std::lock_guard<std::mutex> guard(memory.mutex);
  memory.allocations.decrease(1);
  memory.allocated.decrease(block->bytes);
  memory.requested.decrease(block->requested);
  if (block->segment) {
    auto pool = memory.pools.find(block->pool);
    if (pool != memory.pools.end() && pool->second.number == block->segment->pool) {
      pool->second.give(static_cast<char*>(block->memory.get()), {block->segment, block->bytes});
    }
  }
}

// Record that a stream other than its own uses the memory.
inline void use_on(const c10::DataPtr& memory, c10::StreamId stream) {
  if (auto* block = memory.cast_context<Block>(&free_block)) {
    std::lock_guard<std::mutex> guard(memory_of(block->device).mutex);
    block->users.insert(stream);
  }
}

// Return the device of an address; -1 if it is not device memory.
inline std::mutex places_mutex;
inline std::map<const char*, const Block*> places;

inline c10::DeviceIndex device_at(const char* address) {
  std::lock_guard<std::mutex> guard(places_mutex);
  auto after = places.upper_bound(address);
  if (after == places.begin()) {
    return -1;
  }
  --after;
  return address < after->first + after->second->bytes ? after->second->device : c10::DeviceIndex(-1);
}

// Return all blocks of a device: addresses, bytes, requested bytes, streams, pools.
using Place = std::tuple<uintptr_t, size_t, size_t, c10::StreamId, PoolId>;

inline std::vector<Place> blocks_of(c10::DeviceIndex device) {
  std::vector<Place> found;
  std::lock_guard<std::mutex> guard(places_mutex);
  for (const auto& [address, block] : places) {
    if (block->device == device) {
      found.emplace_back(reinterpret_cast<uintptr_t>(address), block->bytes, block->requested, block->stream, block->pool);
    }
  }
  return found;
}

inline void forget_place(const void* address) {
  std::lock_guard<std::mutex> guard(places_mutex);
  places.erase(static_cast<const char*>(address));
}

inline c10::DataPtr as_device_memory(Block* block) {
  void* address = block->memory.get();
  block->stream = stream_now(block->device);
  {
    std::lock_guard<std::mutex> guard(places_mutex);
    places[static_cast<const char*>(address)] = block;
  }
  return {address, block, &free_block, c10::Device(NPU, block->device)};
}

inline c10::DataPtr as_fresh_memory(Block* block) {
  if (checks_memory.load(std::memory_order_relaxed)) {
    unwritten().add(block->memory.get(), block->bytes);
  }
  return as_device_memory(block);
}

// The pool for allocations while this thread's stream is captured, and the number of the capture.
struct Into {
  PoolId pool;
  uint64_t capture;
};
std::optional<Into> captured_into(c10::DeviceIndex device);

// Pools that user code selected in this thread, by device; the last one is used.
inline thread_local std::vector<std::pair<c10::DeviceIndex, PoolId>> named_pools;

inline std::optional<Into> taken_from(c10::DeviceIndex device) {
  auto into = captured_into(device);
  for (auto named = named_pools.rbegin(); !into && named != named_pools.rend(); ++named) {
    if (named->first == device) {
      into = Into{named->second, 0};
    }
  }
  return into;
}

// Add or remove a user of a pool, which ends without users. Return its number.
inline uint64_t use_pool(c10::DeviceIndex device, PoolId pool, int more) {
  Memory& memory = memory_of(device);
  std::map<char*, Pool::Piece> gone;
  std::lock_guard<std::mutex> guard(memory.mutex);
  Pool& used = memory.pools[pool];
  const uint64_t number = used.number;
  used.users += more;
  if (used.users == 0) {
    gone.swap(used.free);
    memory.pools.erase(pool);
  }
  return number;
}

// Allocate memory on a device.
inline c10::DataPtr take_memory(c10::DeviceIndex device, size_t requested) {
  Memory& memory = memory_of(device);
  const size_t bytes = rounded(requested);
  auto block = std::make_unique<Block>(Block{{}, requested, bytes, device});
  if (requested == 0) {
    return {nullptr, nullptr, &c10::detail::deleteNothing, c10::Device(NPU, device)};
  }
  const auto into = taken_from(device);
  std::lock_guard<std::mutex> guard(memory.mutex);
  if (!into) {
    count_in(memory, device, requested, bytes, false);
    block->memory = c10::GetAllocator(setup().backing)->allocate(bytes);
    return as_fresh_memory(block.release());
  }
  Pool& pool = memory.pools[into->pool];
  const c10::StreamId stream = stream_now(device);
  auto piece = pool.take(bytes, stream);
  if (!piece) {
    const bool is_small = bytes <= SMALL;
    const size_t whole = is_small ? SMALL_SEGMENT : bytes;
    auto fresh = c10::GetAllocator(setup().backing)->allocate(whole);
    char* const address = static_cast<char*>(fresh.get());
    auto segment = std::make_shared<Pool::Segment>(Pool::Segment{std::move(fresh), is_small, stream, pool.number});
    pool.give(address, {std::move(segment), whole});
    memory.reserved.increase(static_cast<int64_t>(whole));
    memory.segments.increase(1);
    piece = pool.take(bytes, stream);
  }
  try {
    count_in(memory, device, requested, bytes, true);
  } catch (...) {
    pool.give(piece->first, piece->second);
    throw;
  }
  block->pool = into->pool;
  block->capture = into->capture;
  block->segment = piece->second.segment;
  block->memory = {piece->first, nullptr, &c10::detail::deleteNothing, backing_device()};
  return as_fresh_memory(block.release());
}

// Convert memory that a kernel of the backing device allocated to device memory.
inline c10::DataPtr adopt_memory(c10::DeviceIndex device, c10::DataPtr&& made, size_t bytes) {
  Memory& memory = memory_of(device);
  auto block = std::make_unique<Block>(Block{{}, bytes, rounded(bytes), device});
  {
    std::lock_guard<std::mutex> guard(memory.mutex);
    count_in(memory, device, bytes, block->bytes, false);
  }
  block->memory = std::move(made);
  return as_device_memory(block.release());
}

struct DeviceAllocator final : c10::DeviceAllocator {
  using Stats = c10::CachingDeviceAllocator::DeviceStats;

  c10::DataPtr allocate(size_t bytes) override { return take_memory(current_device, bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    c10::GetAllocator(setup().backing)->copy_data(target, source, bytes);
  }
  bool initialized() override { return true; }
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override { use_on(memory, stream.id()); }

  void emptyCache(c10::MempoolId_t = {0, 0}) override {
    for (int device = 0; device < setup().devices; ++device) {
      Memory& memory = memory_of(device);
      std::lock_guard<std::mutex> guard(memory.mutex);
      int64_t kept = memory.allocated.current;
      for (auto& [id, pool] : memory.pools) {
        kept += static_cast<int64_t>(pool.free_bytes());
      }
      if (memory.reserved.current > kept) {
        memory.reserved.decrease(memory.reserved.current - kept);
      }
    }
  }

  Stats getDeviceStats(c10::DeviceIndex device) override {
    Memory& memory = memory_of(device);
    std::lock_guard<std::mutex> guard(memory.mutex);
    Stats all;
    all.allocation[0] = all.active[0] = memory.allocations;
    all.allocated_bytes[0] = all.active_bytes[0] = memory.allocated;
    all.requested_bytes[0] = memory.requested;
    all.reserved_bytes[0] = memory.reserved;
    all.segment[0] = memory.segments;
    all.num_ooms = memory.out_of_memory;
    return all;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    change(device, [](Count& count) { count.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    change(device, [](Count& count) { count.reset_peak(); });
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return {setup().memory - getDeviceStats(device).reserved_bytes[0].current, setup().memory};
  }

 private:
  template <typename Change>
  void change(c10::DeviceIndex device, Change one) {
    Memory& memory = memory_of(device);
    std::lock_guard<std::mutex> guard(memory.mutex);
    for (Count* count :
         {&memory.allocations, &memory.allocated, &memory.requested, &memory.reserved, &memory.segments}) {
      one(*count);
    }
  }
};

inline DeviceAllocator& device_allocator() {
  static DeviceAllocator one;
  return one;
}

// Host memory from which a device can copy asynchronously.
struct PinnedMemory final : at::HostAllocator {
  std::mutex mutex;
  std::map<const char*, size_t> pinned;

  c10::DataPtr allocate(size_t bytes) override {
    auto* address = static_cast<char*>(c10::alloc_cpu(std::max<size_t>(bytes, 1)));
    std::lock_guard<std::mutex> guard(mutex);
    pinned.emplace(address, std::max<size_t>(bytes, 1));
    return {address, address, &PinnedMemory::release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedMemory::release; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  bool holds(const void* address) {
    std::lock_guard<std::mutex> guard(mutex);
    auto after = pinned.upper_bound(static_cast<const char*>(address));
    if (after == pinned.begin()) {
      return false;
    }
    --after;
    return static_cast<const char*>(address) < after->first + after->second;
  }

  static void release(void* address);
};

inline PinnedMemory& pinned_memory() {
  static PinnedMemory one;
  return one;
}

inline void PinnedMemory::release(void* address) {
  {
    std::lock_guard<std::mutex> guard(pinned_memory().mutex);
    pinned_memory().pinned.erase(static_cast<const char*>(address));
  }
  c10::free_cpu(address);
}

}  // namespace sim
