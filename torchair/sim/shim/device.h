// Devices, streams and events, as torch requires them.
#pragma once

#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>

#include "capture.h"
#include "generator.h"
#include "memory.h"
#include "order.h"

namespace sim {

inline std::atomic<c10::StreamId> last_stream{0};

struct Event {
  c10::Stream stream;
  std::chrono::steady_clock::time_point when;
  uint64_t capture = 0;  // recorded during capture of this graph
  size_t mark = 0;  // index in the capture
  std::shared_ptr<std::atomic<bool>> is_reached;  // for streams in random order
  Clock clock;
};

inline void check_device(c10::DeviceIndex device) {
  TORCH_CHECK(
      device >= 0 && device < setup().devices, "NPU error: invalid device ordinal ", int(device), "; there are ",
      int(setup().devices), " (simulated) devices");
}

inline void synchronize(const c10::Stream& stream) {
  refuse_in_capture(stream, "synchronize");
  refuse_on_waiting(stream);
  finish(stream);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return NPU; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    if (device.has_index()) {
      setDevice(device);
    }
    return before;
  }
  c10::Device getDevice() const override { return {NPU, current_device}; }
  void setDevice(c10::Device device) const override {
    check_device(device.index());
    current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) {
      current_device = device.index();
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override { return setup().devices; }

  c10::Stream getStream(c10::Device device) const override {
    const auto index = device.has_index() ? device.index() : current_device;
    return stream_of(index, current_streams.at(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(device.has_index() ? device.index() : current_device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream_of(device.has_index() ? device.index() : current_device, ++last_stream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto& current = current_streams.at(stream.device_index());
    const auto before = stream_of(stream.device_index(), current);
    current = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    return !order().is_on || order().is_idle(key_of(stream));
  }
  // No `override`, because torch 2.11 does not declare it.
  bool isStreamCapturing(const c10::Stream& stream) const { return capture_on(stream) != nullptr; }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize(stream_of(device, current_streams.at(device)));
    finish_device(device);
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    use_on(memory, stream.id());
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Event{stream, {}};
    }
    auto* one = static_cast<Event*>(*event);
    one->stream = stream;
    one->when = std::chrono::steady_clock::now();
    Capture* capture = capture_on(stream);
    one->capture = capture ? capture->number : 0;
    one->clock = races_on(stream).now(key_of(stream));
    if (capture) {
      one->mark = capture->marks++;
      capture->mark(stream.id(), one->mark, false);
    } else if (order().is_on) {
      auto is_reached = one->is_reached = std::make_shared<std::atomic<bool>>(false);
      order().give(key_of(stream), {"Event.record", [is_reached] { return is_reached->exchange(true), true; }});
    } else {
      one->is_reached.reset();
    }
  }
  // A stream that waits for a captured one is captured, too.
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) {
      return;
    }
    const auto* one = static_cast<Event*>(event);
    if (one->capture != 0) {
      join_capture(one->capture, stream);
    }
    races_on(stream).waits(key_of(stream), one->clock);
    if (Capture* capture = capture_on(stream)) {
      if (capture->number == one->capture) {
        capture->mark(stream.id(), one->mark, true);
      }
    } else if (one->is_reached && order().is_on) {
      order().give(key_of(stream), {"Event.wait", [is_reached = one->is_reached] { return is_reached->load(); }});
    }
  }
  bool queryEvent(void* event) const override {
    const auto* one = static_cast<Event*>(event);
    if (one == nullptr || !one->is_reached) {
      return true;
    }
    if (!one->is_reached->load()) {
      order().step();
    }
    return one->is_reached->load();
  }
  void synchronizeEvent(void* event) const override {
    const auto* one = static_cast<Event*>(event);
    if (one == nullptr) {
      return;
    }
    if (one->is_reached) {
      order().until([is_reached = one->is_reached] { return is_reached->load(); });
    }
    if (checks_races) {
      races().host_waits(one->clock);
    }
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(first && second, "both events must be recorded before their times are compared");
    const auto between = static_cast<Event*>(second)->when - static_cast<Event*>(first)->when;
    return std::chrono::duration<double, std::milli>(between).count();
  }
};

// Give a storage other memory with the old contents.
inline void resize_storage(const c10::Storage& storage, size_t bytes) {
  finish_device(storage.device().index());
  auto fresh = take_memory(storage.device().index(), bytes);
  const size_t kept = std::min(bytes, storage.nbytes());
  if (kept) {
    const c10::DataPtr& old = storage.data_ptr();
    device_allocator().copy_data(fresh.get(), old.get(), kept);
    if (checks_memory.load(std::memory_order_relaxed)) {
      unwritten().carry(old.get(), fresh.get(), kept);
    }
  }
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return setup().devices > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return setup().devices; }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    check_device(device);
    current_device = device;
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = current_device;
    setCurrentDevice(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? current_device : device);
  }
  // With CUDA, `torch.empty(pin_memory=True)` uses CUDA's pinned memory.
  bool isPinnedPtr(const void* address) const override {
    return pinned_memory().holds(address) ||
        (setup().backing == c10::DeviceType::CUDA && at::detail::getCUDAHooks().isPinnedPtr(address));
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  at::Device getDeviceFromPtr(void*) const override { return {NPU, current_device}; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

}  // namespace sim
