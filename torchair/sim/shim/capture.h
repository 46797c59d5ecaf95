// Graphs of the simulated device: a log of the work of a stream, which a replay runs again.
//
// During capture, existing memory is never written: an op writes to a shadow instead, which later ops of the capture
// read. Memory allocated during capture belongs to the pool and stays there as long as any graph of the pool lives, so
// a replay finds every address unchanged. Memory that one graph frees may be reused by a later one; both are correct if
// they are replayed in the order of capture. The log contains addresses, not tensors: if user code frees other memory
// that a graph uses, a replay raises an error.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "memory.h"
#include "races.h"

namespace sim {

inline c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(NPU, device), id);
}

inline thread_local std::array<c10::StreamId, MAX_DEVICES> current_streams{};

// One task of a stream. It returns whether it is done; a task that waits is called again.
struct Task {
  std::string name;
  std::function<bool()> run;
  c10::StreamId stream = 0;  // the stream of the capture
  int64_t mark = -1;  // an event that it records, or waits for
  bool waits = false;
  std::vector<at::Tensor> targets;  // memory of its results
};

// Streams that wait for an event which is recorded outside of the graph.
inline std::atomic<int> streams_waiting{0};
inline std::mutex waiting_mutex;
inline std::set<std::pair<c10::DeviceIndex, c10::StreamId>> waiting;

inline void set_waiting(const c10::Stream& stream, bool is_waiting) {
  std::lock_guard<std::mutex> guard(waiting_mutex);
  if (is_waiting) {
    waiting.insert({stream.device_index(), stream.id()});
  } else {
    waiting.erase({stream.device_index(), stream.id()});
  }
  streams_waiting = static_cast<int>(waiting.size());
}

inline void refuse_on_waiting(const c10::Stream& stream) {
  if (streams_waiting.load(std::memory_order_relaxed) == 0) {
    return;
  }
  std::lock_guard<std::mutex> guard(waiting_mutex);
  TORCH_CHECK(
      !waiting.count({stream.device_index(), stream.id()}),
      "deadlock: the stream waits for an ExternalEvent without a record; record it on another stream first");
}

// Memory that a graph uses and that belongs to no graph of its pool.
struct Need {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  const void* address;
  std::string name;  // of the first op that uses it
};

struct Capture : std::enable_shared_from_this<Capture> {
  uint64_t number;
  c10::DeviceIndex device;
  PoolId pool;
  uint64_t pool_number;
  c10::StreamId origin;
  std::set<c10::StreamId> streams;
  std::vector<Task> tasks;
  std::vector<Need> needs;
  std::unordered_map<const c10::StorageImpl*, std::pair<c10::Storage, c10::Storage>> shadows;
  std::unordered_set<const c10::StorageImpl*> needed;
  size_t marks = 0;  // number of recorded events
  std::map<c10::StreamId, size_t> groups;  // open task groups, with their first task
  Races races;  // between its streams
  std::vector<Range> ranges;  // accesses of a replay
  bool was_reset = false;

  Capture(c10::DeviceIndex device, PoolId pool)
      : device(device), pool(pool), pool_number(use_pool(device, pool, +1)) {}

  // Queued replays keep the graph and its memory alive until they are done, so that releasing a graph never waits for
  // them. The release may come from the garbage collector at any time.
  ~Capture() {
    tasks.clear();
    use_pool(device, pool, -1);
  }

  void add(std::string name, std::function<bool()> run, std::vector<at::Tensor> targets = {}) {
    tasks.push_back(
        {std::move(name), std::move(run), current_streams.at(device), -1, false, std::move(targets)});
  }

  // A stream records an event, or waits for one.
  void mark(c10::StreamId stream, size_t number, bool waits) {
    const char* name = waits ? "Event.wait" : "Event.record";
    tasks.push_back({name, [] { return true; }, stream, static_cast<int64_t>(number), waits});
  }

  bool is_own(const c10::Storage& storage) const {
    const auto* block = storage.data_ptr().cast_context<Block>(&free_block);
    return block && block->capture == number;
  }

  // Return whether the memory lives as long as this graph. Memory that user code allocated in the pool may be reused.
  bool is_of_pool(const c10::Storage& storage) const {
    const auto* block = storage.data_ptr().cast_context<Block>(&free_block);
    return block && block->capture != 0 && block->segment->pool == pool_number;
  }

  // The log uses this memory by its address.
  void need(const c10::Storage& storage, const std::string& name) {
    if (!is_of_pool(storage) && storage.data() != nullptr && needed.insert(storage.unsafeGetStorageImpl()).second) {
      needs.push_back({storage.getWeakStorageImpl(), storage.data(), name});
    }
  }

  // Return the shadow that an op of the capture writes to.
  void shadow(const c10::Storage& storage) {
    if (is_own(storage) || shadows.count(storage.unsafeGetStorageImpl())) {
      return;
    }
    const size_t bytes = storage.nbytes();
    c10::Storage copy(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), bytes, c10::GetAllocator(setup().backing), true));
    c10::GetAllocator(setup().backing)->copy_data(copy.mutable_data(), storage.data(), bytes);
    shadows.emplace(storage.unsafeGetStorageImpl(), std::make_pair(storage, copy));
  }
};

inline std::mutex capture_mutex;
inline std::map<uint64_t, std::shared_ptr<Capture>> captures;
inline std::atomic<int> captures_under_way{0};
inline std::atomic<uint64_t> last_capture{0};

inline Capture* capture_on(const c10::Stream& stream) {
  if (captures_under_way.load(std::memory_order_relaxed) == 0) {
    return nullptr;
  }
  std::lock_guard<std::mutex> guard(capture_mutex);
  for (auto& [number, capture] : captures) {
    if (capture->device == stream.device_index() && capture->streams.count(stream.id())) {
      return capture.get();
    }
  }
  return nullptr;
}

inline Capture* capture_here(c10::DeviceIndex device) {
  return capture_on(stream_of(device, current_streams.at(device)));
}

inline std::optional<Into> captured_into(c10::DeviceIndex device) {
  Capture* capture = capture_here(device);
  return capture ? std::make_optional(Into{capture->pool, capture->number}) : std::nullopt;
}

inline void join_capture(uint64_t number, const c10::Stream& stream) {
  std::lock_guard<std::mutex> guard(capture_mutex);
  auto found = captures.find(number);
  if (found != captures.end() && found->second->device == stream.device_index()) {
    found->second->streams.insert(stream.id());
  }
}

inline void refuse_in_capture(const c10::Stream& stream, const std::string& what) {
  TORCH_CHECK(
      capture_on(stream) == nullptr, "NPU error: operation not permitted when stream is capturing: ", what,
      " needs results, which do not exist during capture");
}

// A graph, the implementation of torch.npu.NPUGraph.
class Graph {
 public:
  ~Graph() { reset(); }

  void begin(PoolId pool) {
    TORCH_CHECK(!capture_, "this graph is already being captured");
    TORCH_CHECK(!is_ready_, "this graph has already been captured; call reset() first");
    const auto stream = stream_of(current_device, current_streams.at(current_device));
    TORCH_CHECK(capture_on(stream) == nullptr, "NPU error: the current stream is already being captured");
    capture_ = std::make_shared<Capture>(current_device, pool);
    capture_->number = ++last_capture;
    capture_->origin = stream.id();
    capture_->streams.insert(stream.id());
    std::lock_guard<std::mutex> guard(capture_mutex);
    captures.emplace(capture_->number, capture_);
    ++captures_under_way;
  }

  void end() {
    TORCH_CHECK(capture_ && !is_ready_, "capture_end without capture_begin");
    const bool has_open_groups = !std::exchange(capture_->groups, {}).empty();
    {
      std::lock_guard<std::mutex> guard(capture_mutex);
      captures.erase(capture_->number);
      --captures_under_way;
    }
    capture_->shadows.clear();
    is_ready_ = true;
    TORCH_CHECK(!has_open_groups, "a graph_task_group_begin of this graph has no graph_task_group_end");
  }

  // The caller checked the addresses: the memory is valid, even if it belongs to another tensor than during capture.
  bool trusts_addresses = false;

  void replay() {
    TORCH_CHECK(is_ready_, "cannot replay a graph that was not captured");
    Capture* outer = capture_here(capture_->device);
    TORCH_CHECK(outer == nullptr, "NPU error: a graph cannot be replayed while the stream is being captured");
    for (auto& need : capture_->needs) {
      auto storage = need.storage.lock();
      const bool is_there = storage && storage->data() == need.address;
      const bool is_anothers = trusts_addresses && device_at(static_cast<const char*>(need.address)) >= 0;
      TORCH_CHECK(
          is_there || is_anothers, "use after free: this graph was captured with a tensor for ",
          need.name, " whose memory was freed: keep the tensor alive as long as the graph");
    }
    const auto stream = stream_of(capture_->device, current_streams.at(capture_->device));
    refuse_on_waiting(stream);
    start(capture_, stream);
  }

  void reset() {
    if (!capture_) {
      return;
    }
    if (!is_ready_) {
      capture_->groups.clear();
      end();
    }
    capture_->was_reset = true;
    capture_.reset();
    is_ready_ = false;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    if (capture_) {
      for (auto& task : capture_->tasks) {
        if (task.mark < 0) {
          all.push_back(task.name);
        }
      }
    }
    return all;
  }

  PoolId pool() const {
    TORCH_CHECK(capture_, "pool() needs a captured graph");
    return capture_->pool;
  }

  // Run all tasks on a stream, immediately or in its turn.
  static void start(const std::shared_ptr<Capture>& capture, const c10::Stream& stream);

 private:
  // Run all tasks from one on; if one has to wait, the streams that it waits for continue with it.
  static void go_on(const std::shared_ptr<Capture>& capture, size_t at, const c10::Stream& stream);

  std::shared_ptr<Capture> capture_;
  bool is_ready_ = false;
};

// An event of graphs that is recorded outside of the graph.
struct ExternalEvent {
  bool is_recorded = false;
  std::vector<std::function<void()>> waiting;

  void record() {
    is_recorded = true;
    std::vector<std::function<void()>> now;
    now.swap(waiting);
    for (auto& go_on : now) {
      go_on();
    }
  }
};

// The event that a task waits for; the unfinished task sets it.
inline thread_local ExternalEvent* awaited = nullptr;

inline void Graph::go_on(const std::shared_ptr<Capture>& capture, size_t at, const c10::Stream& stream) {
  for (; at < capture->tasks.size(); ++at) {
    if (!capture->tasks[at].run()) {
      set_waiting(stream, true);
      awaited->waiting.push_back([capture, at, stream] {
        set_waiting(stream, false);
        go_on(capture, at, stream);
      });
      return;
    }
  }
}

// Return whether the task is queued.
bool give_external(const c10::Stream& stream, const std::string& name, const std::function<bool()>& act);

// Apply an external event to a stream, immediately or at every replay of its graph.
inline void on_stream(const c10::Stream& stream, const std::string& name, std::function<bool()> act) {
  if (Capture* capture = capture_on(stream)) {
    capture->tasks.push_back({name, std::move(act), stream.id()});
  } else if (give_external(stream, name, act)) {
  } else if (!act()) {
    set_waiting(stream, true);
    awaited->waiting.push_back([stream] { set_waiting(stream, false); });
  }
}

}  // namespace sim
