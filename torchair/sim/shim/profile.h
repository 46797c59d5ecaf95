// Timing for torch's profiler: the times of events are those of the host.
#pragma once

#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>

#include "memory.h"

namespace sim {

struct ProfilerClock final : torch::profiler::impl::ProfilerStubs {
  using Event = torch::profiler::impl::ProfilerVoidEventStub;

  void record(c10::DeviceIndex* device, Event* event, int64_t* cpu_ns) const override {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const int64_t time = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    if (device != nullptr) {
      *device = current_device;
    }
    if (cpu_ns != nullptr) {
      *cpu_ns = time;
    }
    *event = std::make_shared<int64_t>(time);
  }
  // In microseconds.
  float elapsed(const Event* first, const Event* second) const override {
    const auto time = [](const Event* event) { return *static_cast<const int64_t*>(event->get()); };
    return static_cast<float>(time(second) - time(first)) / 1000;
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override {
    for (int device = 0; device < setup().devices; ++device) {
      op(device);
    }
  }
  void synchronize() const override {}
};

}  // namespace sim
