// Memory accesses of a call.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <set>
#include <sstream>

#include "device.h"

namespace sim {

// Arguments that an op writes although its schema does not declare it.
inline bool is_written(const c10::FunctionSchema& schema, size_t place) {
  const auto* alias = schema.arguments()[place].alias_info();
  if (alias != nullptr && alias->isWrite()) {
    return true;
  }
  return (schema.name() == "aten::native_batch_norm" && (place == 3 || place == 4)) ||
      (schema.name() == "aten::batch_norm_update_stats" && (place == 1 || place == 2));
}

inline bool is_npu(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == NPU;
}

inline void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& act) {
  if (value.isTensor()) {
    act(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector()) {
      act(each);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
      if (each) {
        act(*each);
      }
    }
  }
}

// Return the bytes between the first and the last element of a tensor.
inline void add_range(std::vector<Range>& ranges, const at::Tensor& tensor, bool writes) {
  if (!is_npu(tensor) || tensor.numel() == 0 || !tensor.has_storage() || tensor.storage().data() == nullptr) {
    return;
  }
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  const auto size = static_cast<int64_t>(tensor.dtype().itemsize());
  const char* begin = static_cast<const char*>(tensor.storage().data()) + tensor.storage_offset() * size;
  ranges.push_back({begin, begin + (last + 1) * size, writes});
}

// Record that a call of this name is about to read or write a tensor, or both.
inline void look_at(const std::string& name, const at::Tensor& tensor, bool reads, bool writes) {
  if (!is_npu(tensor) || tensor.numel() == 0 || !tensor.has_storage() || tensor._is_zerotensor()) {
    return;
  }
  int64_t last = tensor.storage_offset();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  const auto describe = [&](const std::string& what) {
    const std::string where = user_line();
    std::ostringstream text;
    text << what << ": " << name << (where.empty() ? "" : " (" + where + ")") << " uses a tensor of " << tensor.dtype()
         << " and size " << tensor.sizes() << " on " << tensor.device();
    return text.str();
  };
  const size_t needed = static_cast<size_t>(last + 1) * tensor.dtype().itemsize();
  TORCH_CHECK(
      needed <= tensor.storage().nbytes(), describe("freed memory"), ", whose memory was freed: it needs ", needed,
      " bytes, and its storage has ", tensor.storage().nbytes());
  if (reads && capture_here(tensor.device().index()) == nullptr) {  // a captured graph reads when it is replayed
    const size_t bytes = unwritten().count(tensor);
    TORCH_CHECK(
        bytes == 0, describe("uninitialized memory"), ", of which ", bytes, " of ",
        tensor.numel() * tensor.dtype().itemsize(), " bytes were never written");
  }
  if (writes) {
    unwritten().write(tensor);
  }
}

// Ops that overwrite their first argument without reading it, or write parts of it or of a copy.
inline const std::set<std::string> WRITES{
    "fill_", "zero_", "copy_", "normal_", "uniform_", "random_", "exponential_", "geometric_", "log_normal_", "cauchy_",
    "bernoulli_", "_foreach_zero_", "_foreach_copy_", "set_", "resize_", "resize_as_", "fill_diagonal_"};
inline const std::set<std::string> WRITES_PARTS{
    "index_put", "_index_put_impl", "index_copy", "index_fill", "scatter", "masked_fill", "masked_scatter", "put",
    "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"};

inline const std::map<std::string, std::set<size_t>> WRITTEN_ARGUMENTS{
    {"aten::_cummax_helper", {1, 2}}, {"aten::_cummin_helper", {1, 2}}, {"aten::rrelu_with_noise", {1}},
    {"aten::rrelu_with_noise_", {1}}};

// Return whether a call reads the elements of this argument.
inline bool is_read(const c10::FunctionSchema& schema, size_t place) {
  const bool is_result = is_written(schema, place) && schema.arguments()[place].kwarg_only();
  if (is_result || place > 0) {
    const auto written = WRITTEN_ARGUMENTS.find(schema.name());
    const bool only_writes = is_result || (written != WRITTEN_ARGUMENTS.end() && written->second.count(place));
    return !only_writes && schema.name() != "aten::resize_as_";
  }
  const std::string name = schema.name().substr(schema.name().find("::") + 2);
  const std::string stem = name.back() == '_' ? name.substr(0, name.size() - 1) : name;
  const bool is_like = name.size() > 5 && name.compare(name.size() - 5, 5, "_like") == 0;
  return !(is_like || name.rfind("new_", 0) == 0 || WRITES.count(name) || WRITES_PARTS.count(stem));
}

// A view op accesses no memory.
inline bool is_view(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr && !argument.alias_info()->isWrite()) {
      return true;
    }
  }
  return false;
}

// Return the reads and writes of a call, from its schema.
inline std::vector<Range> ranges_of(const c10::FunctionSchema& schema, const torch::jit::Stack& stack, size_t begin) {
  std::vector<Range> ranges;
  if (checks_memory.load(std::memory_order_relaxed) && !is_view(schema)) {
    for (size_t at = 0; at < schema.arguments().size(); ++at) {
      for_each_tensor(stack[begin + at], [&](const at::Tensor& tensor) {
        look_at(schema.name(), tensor, is_read(schema, at), is_written(schema, at));
      });
    }
  }
  if (checks_races.load(std::memory_order_relaxed)) {
    for (size_t at = 0; at < schema.arguments().size(); ++at) {
      const bool writes = is_written(schema, at);
      for_each_tensor(stack[begin + at], [&](const at::Tensor& tensor) { add_range(ranges, tensor, writes); });
    }
  }
  return ranges;
}

}  // namespace sim
