// Streams in random order, and detection of data races.
//
// A stream normally runs its work immediately. With a seed, the work waits in its queue instead, and a random generator
// selects the next stream. The same seed gives the same order, and a program that lacks a wait returns other results
// with some seeds. If the host waits for work, it finishes first.
//
// Race detection is independent of that order: each memory access has a vector clock of the accesses before it.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <deque>
#include <random>
#include <thread>

#include "capture.h"

namespace sim {

inline Key key_of(const c10::Stream& stream) {
  return {stream.device_index(), stream.id()};
}

inline Key current_key(c10::DeviceIndex device) {
  return {device, current_streams.at(device)};
}

inline std::string in_words(const Key& key) {
  return key.second == 0 ? "the default stream" : "stream " + std::to_string(key.second);
}

// The queues of all streams.
class Order {
 public:
  std::atomic<bool> is_on{false};

  void begin(uint64_t seed) {
    TORCH_CHECK(!is_on, "torchair.sim.interleaved is already active");
    lots_.seed(seed);
    is_on = true;
  }

  void end() {
    if (!is_on) {
      return;
    }
    try {
      until([this] { return queues_.empty(); });
    } catch (...) {
      abandon();
      throw;
    }
    is_on = false;
  }

  // Drop work that cannot run; the host got an error for it.
  void abandon() {
    decltype(queues_) gone;
    std::lock_guard<std::mutex> guard(mutex_);
    for (auto row = queues_.begin(); row != queues_.end();) {
      auto next = std::next(row);
      if (!busy_.count(row->first)) {
        gone.insert(queues_.extract(row));
      }
      row = next;
    }
    is_on = false;
  }

  void give(const Key& stream, Task task) {
    uint64_t steps = 0;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      queues_[stream].push_back(std::move(task));
      steps = lots_() % 4;
    }
    while (steps-- > 0 && step()) {
    }
  }

  void finish(const Key& stream) {
    until([this, stream] { return queues_.count(stream) == 0; });
  }

  void finish_device(c10::DeviceIndex device) {
    until([this, device] {
      return std::none_of(queues_.begin(), queues_.end(), [device](const auto& row) { return row.first.first == device; });
    });
  }

  bool is_idle(const Key& stream) {
    step();
    std::lock_guard<std::mutex> guard(mutex_);
    return queues_.count(stream) == 0;
  }

  // Run streams until the condition holds.
  void until(const std::function<bool()>& holds) {
    while (true) {
      {
        std::lock_guard<std::mutex> guard(mutex_);
        if (holds()) {
          return;
        }
      }
      if (!step()) {
        std::lock_guard<std::mutex> guard(mutex_);
        TORCH_CHECK(
            holds() || !busy_.empty(), "deadlock: every stream waits for an event without a record: ", waiting());
      }
      std::this_thread::yield();
    }
  }

  // Run one task of a randomly selected stream; return false if no stream can continue.
  bool step() {
    std::unique_lock<std::mutex> guard(mutex_);
    std::vector<Key> ready;
    for (const auto& [key, queue] : queues_) {
      if (!busy_.count(key)) {
        ready.push_back(key);
      }
    }
    while (!ready.empty()) {
      const size_t at = lots_() % ready.size();
      const Key key = ready[at];
      auto& queue = queues_.at(key);
      Task& head = queue.front();
      busy_.insert(key);
      guard.unlock();
      bool is_done = true;
      std::exception_ptr error;
      try {
        is_done = head.run();
      } catch (...) {
        error = std::current_exception();
      }
      guard.lock();
      busy_.erase(key);
      if (is_done) {
        const Task gone = std::move(head);  // destroy the task without the lock
        queue.pop_front();
        if (queue.empty()) {
          queues_.erase(key);
        }
        guard.unlock();
        if (error) {
          std::rethrow_exception(error);
        }
        return true;
      }
      ready.erase(ready.begin() + static_cast<int64_t>(at));
    }
    return false;
  }

 private:
  std::string waiting() const {
    std::string text;
    for (const auto& [key, queue] : queues_) {
      text += (text.empty() ? "" : ", ") + in_words(key) + " at " + queue.front().name;
    }
    return text;
  }

  std::mutex mutex_;
  std::mt19937_64 lots_;
  std::map<Key, std::deque<Task>> queues_;
  std::set<Key> busy_;  // streams with a running task
};

inline Order& order() {
  static Order one;
  return one;
}

// Return the current line of the user's program; empty in threads of torch.
inline std::string user_line() {
  py::gil_scoped_acquire gil;
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame && !frame.is_none()) {
    const auto file = frame.attr("f_code").attr("co_filename").cast<std::string>();
    if (file.find("/torch/") == std::string::npos && file.find("/torchair/") == std::string::npos) {
      return file + ":" + std::to_string(frame.attr("f_lineno").cast<int>());
    }
    frame = frame.attr("f_back");
  }
  return "";
}

inline std::atomic<bool> checks_races{false};

// Accesses outside of captures.
inline Races& races() {
  static Races one;
  return one;
}

inline Races& races_on(const c10::Stream& stream) {
  Capture* capture = capture_on(stream);
  return capture ? capture->races : races();
}

std::string take_pending();

inline void note(const c10::Stream& stream, const std::string& name, const std::vector<Range>& ranges) {
  if (!checks_races.load(std::memory_order_relaxed) || ranges.empty()) {
    return;
  }
  Capture* capture = capture_on(stream);
  const std::string where = user_line();
  const std::string wrong = (capture ? capture->races : races()).note(key_of(stream), name, where, ranges);
  if (capture) {
    capture->ranges.insert(capture->ranges.end(), ranges.begin(), ranges.end());
  }
  TORCH_CHECK(wrong.empty(), wrong);
  const std::string late = take_pending();
  TORCH_CHECK(late.empty(), late);
}

// Let the host wait until a stream has finished its work.
inline void finish(const c10::Stream& stream) {
  if (order().is_on) {
    order().finish(key_of(stream));
  }
  if (checks_races) {
    races().host_waits(key_of(stream));
  }
}

inline void finish_here(c10::DeviceIndex device) {
  finish(stream_of(device, current_streams.at(device)));
}

inline void finish_device(c10::DeviceIndex device) {
  if (order().is_on) {
    order().finish_device(device);
  }
  if (checks_races) {
    races().host_waits_for_device(device);
  }
}

// Queue a captured graph: on the stream of the replay, and on other streams for those of the capture.
inline void give_graph(const std::shared_ptr<Capture>& capture, const c10::Stream& stream) {
  static std::atomic<c10::StreamId> last{0};
  auto reached = std::make_shared<std::vector<char>>(capture->marks);
  std::map<c10::StreamId, Key> places{{capture->origin, key_of(stream)}};
  for (size_t at = 0; at < capture->tasks.size(); ++at) {
    const Task& task = capture->tasks[at];
    auto place = places.find(task.stream);
    if (place == places.end()) {
      place = places.emplace(task.stream, Key{capture->device, --last}).first;
    }
    std::function<bool()> run = [capture, at] { return capture->tasks[at].run(); };
    if (task.mark >= 0) {
      const auto mark = static_cast<size_t>(task.mark);
      run = task.waits ? std::function<bool()>([reached, mark] { return (*reached)[mark] != 0; })
                       : std::function<bool()>([reached, mark] { return (*reached)[mark] = 1; });
    }
    order().give(place->second, {task.name, std::move(run)});
  }
}

inline void Graph::start(const std::shared_ptr<Capture>& capture, const c10::Stream& stream) {
  note(stream, "a graph", capture->ranges);
  if (order().is_on) {
    give_graph(capture, stream);
  } else {
    go_on(capture, 0, stream);
  }
}

inline bool give_external(const c10::Stream& stream, const std::string& name, const std::function<bool()>& act) {
  if (!order().is_on) {
    return false;
  }
  order().give(key_of(stream), {name, act});
  return true;
}

// Report this in the next op, or at the end, because freeing memory must not raise.
inline std::mutex pending_mutex;
inline std::string pending;

inline std::string take_pending() {
  std::lock_guard<std::mutex> guard(pending_mutex);
  return std::exchange(pending, "");
}

inline void forget_accesses(const Block& block) {
  if (!checks_races.load(std::memory_order_relaxed)) {
    return;
  }
  const auto* begin = static_cast<const char*>(block.memory.get());
  const std::string wrong = races().forget(begin, block.bytes, {block.device, block.stream}, block.users);
  if (checks_memory && block.capture == 0) {
    std::lock_guard<std::mutex> guard(pending_mutex);
    pending = pending.empty() ? wrong : pending;
  }
}

inline c10::StreamId stream_now(c10::DeviceIndex device) {
  return current_streams.at(device);
}

}  // namespace sim
