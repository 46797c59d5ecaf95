// The simulated `npu` device: the PrivateUse1 backend of torch on the memory and kernels of another device.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "autocast.h"
#include "device.h"
#include "dispatch.h"
#include "kernels.h"
#include "memory.h"
#include "order.h"
#include "profile.h"
#include "program.h"
#include "updates.h"

namespace {

std::map<std::string, int64_t> memory_stats(c10::DeviceIndex device) {
  const auto stats = sim::device_allocator().getDeviceStats(device);
  std::map<std::string, int64_t> all{{"num_ooms", stats.num_ooms}, {"num_alloc_retries", stats.num_alloc_retries}};
  const std::pair<const char*, const c10::CachingAllocator::StatArray&> counted[] = {
      {"allocation", stats.allocation}, {"active", stats.active}, {"segment", stats.segment},
      {"inactive_split", stats.inactive_split}, {"allocated_bytes", stats.allocated_bytes},
      {"active_bytes", stats.active_bytes}, {"requested_bytes", stats.requested_bytes},
      {"reserved_bytes", stats.reserved_bytes}, {"inactive_split_bytes", stats.inactive_split_bytes},
  };
  for (const auto& [name, counts] : counted) {
    const sim::Count& count = counts[0];
    const std::string start = std::string(name) + ".all.";
    all[start + "current"] = count.current;
    all[start + "peak"] = count.peak;
    all[start + "allocated"] = count.allocated;
    all[start + "freed"] = count.freed;
  }
  return all;
}

void install(int devices, const std::string& backing, size_t memory) {
  TORCH_CHECK_VALUE(devices >= 1 && devices <= sim::MAX_DEVICES, "devices must be 1 to ", sim::MAX_DEVICES);
  sim::setup() = {backing == "cpu" ? c10::DeviceType::CPU : c10::DeviceType::CUDA, c10::DeviceIndex(devices), memory};
  static sim::Hooks hooks;
  static bool is_installed = [] {
    c10::SetAllocator(sim::NPU, &sim::device_allocator());
    at::setHostAllocator(sim::NPU, &sim::pinned_memory());
    at::RegisterPrivateUse1HooksInterface(&hooks);
    sim::prefer_kernels();
    static sim::ProfilerClock clock;
    torch::profiler::impl::registerPrivateUse1Methods(&clock);
    return true;
  }();
  (void)is_installed;
}

// Registered before Python knows the device, because torch needs the guard when a tensor is created.
C10_REGISTER_GUARD_IMPL(PrivateUse1, sim::Guard)

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("install", &install);
  module.def("memory_stats", &memory_stats);
  module.def("blocks_of", &sim::blocks_of);
  // The memory pool lives until it is released as often as it was retained.
  module.def("hold_pool", [](c10::DeviceIndex device, sim::PoolId pool) { sim::use_pool(device, pool, +1); });
  module.def("let_go_of_pool", [](c10::DeviceIndex device, sim::PoolId pool) { sim::use_pool(device, pool, -1); });
  module.def("pool_users", [](c10::DeviceIndex device, sim::PoolId pool) {
    auto& memory = sim::memory_of(device);
    std::lock_guard<std::mutex> guard(memory.mutex);
    const auto found = memory.pools.find(pool);
    return found == memory.pools.end() ? 0 : found->second.users;
  });
  module.def("push_pool", [](c10::DeviceIndex device, sim::PoolId pool) { sim::named_pools.emplace_back(device, pool); });
  module.def("pop_pool", [] { sim::named_pools.pop_back(); });
  module.def("empty_cache", [] { sim::device_allocator().emptyCache(); });
  module.def("reset_peak_memory_stats", [](c10::DeviceIndex device) { sim::device_allocator().resetPeakStats(device); });
  module.def("reset_accumulated_memory_stats", [](c10::DeviceIndex device) {
    sim::device_allocator().resetAccumulatedStats(device);
  });
  module.def("set_memory_limit", [](c10::DeviceIndex device, size_t bytes) {
    auto& memory = sim::memory_of(device);
    std::lock_guard<std::mutex> guard(memory.mutex);
    memory.limit = bytes;
  });
  module.def("default_generator", [](c10::DeviceIndex device) { return sim::default_generator(device); });
  module.def("current_device", [] { return sim::current_device; });
  module.def("set_device", [](c10::DeviceIndex device) {
    sim::check_device(device);
    sim::current_device = device;
  });
  module.attr("DEVICE_TYPE") = static_cast<int>(sim::NPU);
  module.def("setup", [] {
    const auto& now = sim::setup();
    return std::make_tuple(int(now.devices), std::string(now.backing == c10::kCPU ? "cpu" : "cuda"), now.memory);
  });
  module.def("device_count", [] { return int(sim::setup().devices); });
  module.def("total_memory", [](c10::DeviceIndex) { return sim::setup().memory; });
  // Queued work may need the GIL.
  module.def("synchronize", [](c10::DeviceIndex device) {
    py::gil_scoped_release unlocked;
    sim::Guard().synchronizeDevice(device);
  });
  module.def("begin_order", [](uint64_t seed) { sim::order().begin(seed); });
  module.def("end_order", [] {
    py::gil_scoped_release unlocked;
    sim::order().end();
  });
  module.def("check_races", [](bool is_on) {
    TORCH_CHECK(!is_on || !sim::checks_races, "torchair.sim.races_checked is already active");
    sim::races().clear();
    sim::checks_races = is_on;
    return sim::take_pending();
  });
  module.def("check_memory", [](bool is_on) {
    TORCH_CHECK(!is_on || !sim::checks_memory, "torchair.sim.memory_checked is already active");
    sim::unwritten().clear();
    sim::checks_memory = is_on;
  });
  module.def("elapsed_time", [](uintptr_t first, uintptr_t second) {
    return sim::Guard().elapsedTime(reinterpret_cast<void*>(first), reinterpret_cast<void*>(second), 0);
  });
  module.def("set_stream", [](c10::DeviceIndex device, c10::StreamId id) {
    sim::check_device(device);
    sim::current_device = device;
    sim::current_streams.at(device) = id;
  });
  module.def("device_at", [](uintptr_t address) -> std::optional<int> {
    const auto found = sim::device_at(reinterpret_cast<const char*>(address));
    return found < 0 ? std::nullopt : std::make_optional(int(found));
  });
  py::class_<sim::Memo>(module, "Memo").def(py::init<>());
  module.def("run_program", &sim::run_program);
  // Return a tensor of the backing device on the memory of a tensor of the device, which it keeps alive.
  module.def("show", [](const at::Tensor& tensor) {
    sim::finish_here(tensor.device().index());
    if (sim::checks_memory) {
      sim::unwritten().write(tensor);  // writes through it are not observed
    }
    return sim::Shown("show", true).show(tensor, false);
  });
  py::class_<sim::ExternalEvent, std::shared_ptr<sim::ExternalEvent>>(module, "ExternalEvent")
      .def(py::init<>())
      .def("record", [](const std::shared_ptr<sim::ExternalEvent>& event, const c10::Stream& stream) {
        sim::on_stream(stream, "ExternalEvent.record", [event] {
          event->record();
          return true;
        });
      })
      .def("wait", [](const std::shared_ptr<sim::ExternalEvent>& event, const c10::Stream& stream) {
        sim::on_stream(stream, "ExternalEvent.wait", [event] {
          sim::awaited = event.get();
          return event->is_recorded;
        });
      })
      .def("reset", [](const std::shared_ptr<sim::ExternalEvent>& event, const c10::Stream& stream) {
        sim::on_stream(stream, "ExternalEvent.reset", [event] {
          event->is_recorded = false;
          return true;
        });
      });
  py::class_<sim::Graph>(module, "Graph")
      .def(py::init<>())
      .def("begin", &sim::Graph::begin)
      .def("end", &sim::Graph::end)
      .def("replay", &sim::Graph::replay)
      .def_readwrite("trusts_addresses", &sim::Graph::trusts_addresses)
      .def("reset", &sim::Graph::reset)
      .def("pool", &sim::Graph::pool)
      .def("names", &sim::Graph::names);
  py::class_<sim::Group>(module, "Group");
  module.def("begin_group", &sim::begin_group);
  module.def("end_group", &sim::end_group);
  module.def("begin_update", &sim::begin_update);
  module.def("end_update", &sim::end_update);
  module.def("is_capturing", [](c10::DeviceIndex device) {
    return sim::capture_here(device) != nullptr || sim::is_updating(device);
  });
  module.def("current_stream", [](c10::DeviceIndex device) { return sim::current_streams.at(device); });
}
