// Unordered accesses to memory.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace sim {

using Key = std::pair<c10::DeviceIndex, c10::StreamId>;  // identifies a stream
using Clock = std::map<Key, uint64_t>;  // the number of preceding tasks of each stream

inline void join(Clock& mine, const Clock& other) {
  for (const auto& [key, count] : other) {
    mine[key] = std::max(mine[key], count);
  }
}

inline std::string in_words(const Key& key);

// Bytes that an op reads or writes.
struct Range {
  const char *begin, *end;
  bool writes;

  bool meets(const Range& other) const {
    return begin < other.end && other.begin < end && (writes || other.writes);
  }
  bool covers(const Range& other) const { return begin <= other.begin && other.end <= end; }
};

class Races {
 public:
  // Return a message, empty if there is no race: an earlier access to the same bytes on another stream that is not
  // ordered before this point.
  std::string note(const Key& stream, const std::string& name, const std::string& where, const std::vector<Range>& ranges) {
    std::lock_guard<std::mutex> guard(mutex_);
    Clock& clock = clocks_[stream];
    join(clock, host_);
    const uint64_t now = ++clock[stream];
    std::string wrong;
    for (const Range& range : ranges) {
      for (const Access& early : seen_) {
        if (wrong.empty() && early.stream != stream && range.meets(early.range) && clock[early.stream] < early.at) {
          wrong = said(early, {stream, now, name, where, range});
        }
      }
    }
    for (const Range& range : ranges) {
      // Accesses ordered after this one are also ordered after its predecessors.
      seen_.erase(
          std::remove_if(
              seen_.begin(), seen_.end(),
              [&](const Access& early) {
                return range.covers(early.range) && clock[early.stream] >= early.at && early.at != now &&
                    (range.writes || (early.stream == stream && !early.range.writes));
              }),
          seen_.end());
      seen_.push_back({stream, now, name, where, range});
    }
    return wrong;
  }

  Clock now(const Key& stream) {
    std::lock_guard<std::mutex> guard(mutex_);
    Clock clock = clocks_[stream];
    join(clock, host_);
    return clock;
  }

  void waits(const Key& stream, const Clock& clock) {
    std::lock_guard<std::mutex> guard(mutex_);
    join(clocks_[stream], clock);
  }

  void host_waits(const Key& stream) { host_waits(now(stream)); }

  void host_waits(const Clock& clock) {
    std::lock_guard<std::mutex> guard(mutex_);
    join(host_, clock);
  }

  void host_waits_for_device(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> guard(mutex_);
    for (const auto& [key, clock] : clocks_) {
      if (key.first == device) {
        join(host_, clock);
      }
    }
  }

  // Freed memory may be reused by the stream of its allocation. Return a message, empty if that is safe: an access of
  // another stream that may not be finished, without `record_stream`.
  std::string forget(const char* begin, size_t bytes, const Key& owner, const std::set<c10::StreamId>& users) {
    std::lock_guard<std::mutex> guard(mutex_);
    const Range gone{begin, begin + bytes, true};
    Clock clock = clocks_[owner];
    join(clock, host_);
    std::string wrong;
    for (const Access& early : seen_) {
      const bool is_known = early.stream == owner || users.count(early.stream.second) > 0;
      if (wrong.empty() && !is_known && gone.covers(early.range) && clock[early.stream] < early.at) {
        wrong = "use after free: memory of " + in_words(owner) + " is freed while " + in_words(early) +
            " may still use it: call record_stream, or let " + in_words(owner) + " wait for " +
            in_words(early.stream) + " before";
      }
    }
    seen_.erase(
        std::remove_if(seen_.begin(), seen_.end(), [&](const Access& early) { return gone.covers(early.range); }),
        seen_.end());
    return wrong;
  }

  void clear() {
    std::lock_guard<std::mutex> guard(mutex_);
    clocks_.clear();
    host_.clear();
    seen_.clear();
  }

 private:
  struct Access {
    Key stream;
    uint64_t at;
    std::string name, where;
    Range range;
  };

  static std::string in_words(const Access& one) {
    return one.name + " on " + sim::in_words(one.stream) + (one.where.empty() ? "" : " (" + one.where + ")");
  }

  static std::string in_words(const Key& key) { return sim::in_words(key); }

  static std::string said(const Access& early, const Access& late) {
    return "race: " + in_words(late) + (late.range.writes ? " writes" : " reads") + " memory that " + in_words(early) +
        (early.range.writes ? " writes" : " reads") + ", and nothing orders them: let " + in_words(late.stream) +
        " wait for " + in_words(early.stream) + " in between";
  }

  std::mutex mutex_;
  std::map<Key, Clock> clocks_;
  Clock host_;  // what is finished for all work from now on
  std::vector<Access> seen_;
};

}  // namespace sim
