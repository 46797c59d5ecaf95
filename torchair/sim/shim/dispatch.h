// Dispatch of ops without a kernel in this extension: the call gets tensors of the backing device on the same memory,
// and its results become tensors of the simulated device.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <unordered_set>

#include "accesses.h"

namespace sim {

// Ops that may mix tensors of the device and of the host, as on other devices.
inline const std::unordered_set<std::string>& mixing() {
  static const std::unordered_set<std::string> names{
      "aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_", "aten::_unsafe_index",
      "aten::_unsafe_index_put", "aten::_pack_padded_sequence", "aten::_pack_padded_sequence_backward", "aten::set_",
      "aten::_thnn_differentiable_lstm_cell_backward", "aten::_cudnn_rnn", "aten::lstm_mps", "air::print"};
  return names;
}

// Results that stay on the host, by op and index.
inline bool stays_on_host(const std::string& name, size_t place) {
  return name == "aten::_pack_padded_sequence" && place == 1;
}

inline c10::DispatchKey backing_key() {
  return setup().backing == c10::DeviceType::CPU ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
}

inline void copy_view(c10::TensorImpl* to, const c10::TensorImpl* from) {
  to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
  if (from->key_set().has(c10::DispatchKey::Conjugate)) {
    to->_set_conj(true);
  }
  if (from->key_set().has(c10::DispatchKey::Negative)) {
    to->_set_neg(true);
  }
  if (from->key_set().has(c10::DispatchKey::ZeroTensor)) {
    to->_set_zero(true);
  }
}

inline void drop_storage(void* context) {
  delete static_cast<c10::Storage*>(context);
}

// How to convert the tensors of a call: to run it now, to infer its results without running it, to run it on a copy of
// memory that must not be written, or to record it.
enum class As { NOW, META, SHADOW, LOG };

// The tensors of one call, on both devices.
class Shown {
 public:
  Shown(const std::string& name, bool may_mix, As as = As::NOW, Capture* capture = nullptr)
      : name_(name), may_mix_(may_mix), as_(as), capture_(capture) {}

  std::optional<c10::Device> device;

  c10::Device there() const { return as_ == As::META ? c10::Device(c10::kMeta) : backing_device(); }
  c10::DispatchKey key() const { return as_ == As::META ? c10::DispatchKey::Meta : backing_key(); }

  // Return a tensor of the backing device on the memory of a tensor of the device.
  at::Tensor show(const at::Tensor& tensor, bool is_written) {
    if (!tensor.defined()) {
      return tensor;
    }
    if (!is_npu(tensor)) {
      if (tensor.dim() > 0) {
        foreign_ = tensor.device();
      }
      return tensor;
    }
    if (!device) {
      device = tensor.device();
    } else if (*device != tensor.device()) {
      fail(*device, tensor.device());
    }
    for (auto& entry : tensors_) {
      if (entry.given.is_same(tensor)) {
        entry.is_written |= is_written;
        return entry.shown;
      }
    }
    at::Tensor shown = at::detail::make_tensor<c10::TensorImpl>(
        show(tensor.storage()), c10::DispatchKeySet(key()), tensor.dtype());
    copy_view(shown.unsafeGetTensorImpl(), tensor.unsafeGetTensorImpl());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      shown.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    tensors_.push_back({tensor, shown, is_written});
    return shown;
  }

  c10::Storage show(const c10::Storage& storage) {
    for (auto& entry : storages_) {
      if (entry.given.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) {
        return entry.shown;
      }
    }
    c10::Storage shown = shown_storage(storage);
    storages_.push_back({storage, shown, shown.data(), storage.nbytes()});
    return shown;
  }

  // Raise if a call mixes tensors of host and device, as on other devices.
  void check_devices() const {
    if (device && foreign_ && !may_mix_) {
      fail(*device, *foreign_);
    }
  }

  // Convert a result to a tensor of the device.
  at::Tensor hide(const at::Tensor& made) {
    if (!made.defined() || made.device().type() != there().type()) {
      return made;
    }
    for (auto& entry : tensors_) {
      if (entry.shown.is_same(made)) {
        return entry.given;
      }
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        made.layout() == c10::kStrided && !made.is_quantized(), name_, " returns a ",
        made.is_quantized() ? "quantized " : "", made.layout(),
        " tensor; the simulated device supports only plain strided tensors");
    at::Tensor given = at::detail::make_tensor<c10::TensorImpl>(
        hide(made.storage()), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), made.dtype());
    copy_view(given.unsafeGetTensorImpl(), made.unsafeGetTensorImpl());
    tensors_.push_back({given, made, false});
    return given;
  }

  // Storages that a kernel created, as `hide` returned them.
  bool has_made() const { return has_made_; }

  // Copy changes of the arguments other than writes: sizes, strides, other storages, resized storages, conjugate bits
  // of results.
  void settle() {
    for (size_t at = 0; at < storages_.size(); ++at) {
      auto entry = storages_[at];
      if (entry.shown.data() != entry.address || entry.shown.nbytes() != entry.bytes) {
        const size_t bytes = entry.shown.nbytes();
        finish_device(entry.given.device().index());  // queued work already has the address
        entry.given.set_data_ptr_noswap(hold(entry.shown));
        entry.given.set_nbytes(bytes);
      }
    }
    for (size_t at = 0; at < tensors_.size(); ++at) {
      auto entry = tensors_[at];
      if (!entry.is_written) {
        continue;
      }
      auto* given = entry.given.unsafeGetTensorImpl();
      auto* shown = entry.shown.unsafeGetTensorImpl();
      const c10::Storage now = hide(entry.shown.storage());
      if (now.unsafeGetStorageImpl() != given->storage().unsafeGetStorageImpl()) {
        given->set_storage_keep_dtype(now);
      }
      if (given->sizes() != shown->sizes() || given->strides() != shown->strides() ||
          given->storage_offset() != shown->storage_offset()) {
        given->set_sizes_and_strides(shown->sizes(), shown->strides(), shown->storage_offset());
      }
      given->_set_conj(entry.shown.is_conj());
      given->_set_neg(entry.shown.is_neg());
    }
  }

 private:
  struct TensorPair {
    at::Tensor given, shown;
    bool is_written;
  };
  struct StoragePair {
    c10::Storage given, shown;
    const void* address;
    size_t bytes;
  };

  c10::Storage shown_storage(const c10::Storage& storage) {
    if (as_ == As::SHADOW) {
      auto found = capture_->shadows.find(storage.unsafeGetStorageImpl());
      if (found != capture_->shadows.end()) {
        return found->second.second;
      }
    }
    c10::DataPtr memory;
    if (as_ == As::META) {
      memory = {nullptr, nullptr, &c10::detail::deleteNothing, there()};
    } else if (as_ == As::LOG) {
      capture_->need(storage, name_);
      memory = {storage.mutable_data(), nullptr, &c10::detail::deleteNothing, backing_device()};
    } else {
      memory = {storage.mutable_data(), new c10::Storage(storage), &drop_storage, backing_device()};
    }
    return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(memory),
        c10::GetAllocator(there().type()), /*resizable=*/true));
  }

  // Convert memory of a storage of the backing device to memory of the device; for a captured stream, to a copy in the
  // pool.
  c10::DataPtr hold(const c10::Storage& made) {
    if (as_ == As::META) {
      return take_memory(device->index(), made.nbytes());
    }
    if (capture_ != nullptr) {
      auto fresh = take_memory(device->index(), made.nbytes());
      c10::GetAllocator(setup().backing)->copy_data(fresh.get(), made.data(), made.nbytes());
      return fresh;
    }
    auto* kept = new c10::Storage(made);
    return adopt_memory(
        device->index(), c10::DataPtr(made.mutable_data(), kept, &drop_storage, backing_device()), made.nbytes());
  }

  c10::Storage hide(const c10::Storage& made) {
    for (auto& entry : storages_) {
      if (entry.shown.unsafeGetStorageImpl() == made.unsafeGetStorageImpl()) {
        return entry.given;
      }
    }
    const size_t bytes = made.nbytes();
    has_made_ = true;
    c10::Storage given(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), bytes,
        bytes ? hold(made) : c10::DataPtr(nullptr, nullptr, &c10::detail::deleteNothing, *device),
        &device_allocator(), /*resizable=*/true));
    storages_.push_back({given, made, made.data(), bytes});
    return given;
  }

  [[noreturn]] void fail(c10::Device one, c10::Device other) const {
    TORCH_CHECK(
        false, "Expected all tensors to be on the same device, but found at least two devices, ", one, " and ", other,
        "! (when calling ", name_, ")");
  }

  std::string name_;
  bool may_mix_;
  As as_;
  Capture* capture_;
  bool has_made_ = false;
  std::optional<c10::Device> foreign_;
  c10::SmallVector<TensorPair, 6> tensors_;
  c10::SmallVector<StoragePair, 6> storages_;
};

inline bool wants_generator(const c10::Argument& argument) {
  const auto& type = argument.type();
  if (type->kind() == c10::TypeKind::GeneratorType) {
    return true;
  }
  return type->kind() == c10::TypeKind::OptionalType &&
      type->expectRef<c10::OptionalType>().getElementType()->kind() == c10::TypeKind::GeneratorType;
}

inline c10::IValue show_value(Shown& shown, const c10::IValue& value, bool is_written) {
  if (value.isTensor()) {
    return shown.show(value.toTensor(), is_written);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) {
      list.push_back(shown.show(each, is_written));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
      list.push_back(each && each->defined() ? std::optional<at::Tensor>(shown.show(*each, is_written)) : each);
    }
    return list;
  }
  if (value.isStorage() && value.toStorage().device_type() == NPU) {
    return shown.show(value.toStorage());
  }
  if (value.isDevice() && value.toDevice().type() == NPU) {
    const c10::Device device = value.toDevice();
    if (!shown.device) {
      shown.device = device.has_index() ? device : c10::Device(NPU, current_device);
    }
    return shown.there();
  }
  return value;
}

inline c10::IValue hide_value(Shown& shown, const c10::IValue& value) {
  if (value.isTensor()) {
    return shown.hide(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) {
      list.push_back(shown.hide(each));
    }
    return list;
  }
  return value;
}

// Exclude autograd, autocast and all other features above a device.
struct Below {
  at::AutoDispatchBelowADInplaceOrView autograd;
  c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
};

// Convert the arguments of a call to the backing device. Generators are set when the call runs.
struct Prepared {
  Shown shown;
  std::vector<std::pair<size_t, at::Generator>> draws;  // argument index of the generator, and the generator

  Prepared(const c10::FunctionSchema& schema, torch::jit::Stack* stack, size_t begin, As as, Capture* capture)
      : shown(schema.name(), mixing().count(schema.name()) > 0, as, capture) {
    const auto& arguments = schema.arguments();
    std::vector<size_t> generators;
    for (size_t at = 0; at < arguments.size(); ++at) {
      auto& value = (*stack)[begin + at];
      if (wants_generator(arguments[at])) {
        generators.push_back(at);
        if (!value.isNone() && !shown.device && value.toGenerator().device().type() == NPU) {
          shown.device = value.toGenerator().device();
        }
        continue;
      }
      value = show_value(shown, value, is_written(schema, at));
    }
    shown.check_devices();
    if (!shown.device) {
      shown.device = c10::Device(NPU, current_device);
    }
    for (size_t at : generators) {
      const auto& value = (*stack)[begin + at];
      at::Generator given = value.isNone() ? default_generator(shown.device->index()) : value.toGenerator();
      TORCH_CHECK(
          given.device().type() == NPU, "Expected a 'npu' device type for generator but found '",
          given.device().type(), "'");
      draws.emplace_back(at, given);
    }
  }
};

inline void call_on_backing(
    const c10::OperatorHandle& called, torch::jit::Stack* stack, size_t begin,
    std::vector<std::pair<size_t, at::Generator>>& draws) {
  for (auto& [at, generator] : draws) {
    std::lock_guard<std::mutex> guard(generator.mutex());
    (*stack)[begin + at] = static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->draw();
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      called.hasComputedKernelForDispatchKey(backing_key()), called.schema().name(),
      " has no kernel on the simulated npu device, because the backing device ", setup().backing, " has none");
  Below below;
  called.redispatchBoxed(c10::DispatchKeySet(backing_key()), stack);
}

inline void hide_results(const c10::FunctionSchema& schema, Shown& shown, torch::jit::Stack* stack) {
  const size_t results = schema.returns().size(), first = stack->size() - results;
  for (size_t at = 0; at < results; ++at) {
    auto& value = (*stack)[first + at];
    if (!stays_on_host(schema.name(), at)) {
      value = hide_value(shown, value);
    }
  }
}

// Copy the results of a repeated call to the memory of the first results.
inline void put(const std::vector<at::Tensor>& targets, const c10::IValue& value, size_t& at) {
  for_each_tensor(value, [&](const at::Tensor& made) {
    const at::Tensor& target = targets.at(at++);
    // Results that are not requested may be empty, whatever the op returns.
    if (made.defined() && target.defined() && made.numel() && target.data_ptr() != made.data_ptr()) {
      target.copy_(made);
    }
  });
}

// Record a repeated call, with its results in the memory of the first ones.
inline std::function<bool()> again(
    const c10::OperatorHandle& called, torch::jit::Stack kept, std::vector<at::Tensor> targets,
    std::vector<std::pair<size_t, at::Generator>> draws, size_t results) {
  return [called, kept = std::move(kept), targets = std::move(targets), draws = std::move(draws), results]() mutable {
    torch::jit::Stack stack(kept);
    call_on_backing(called, &stack, 0, draws);
    Below below;
    size_t at = 0;
    for (size_t result = 0; result < results; ++result) {
      put(targets, stack[result], at);
    }
    return true;
  };
}

inline void refuse_values(const c10::OperatorHandle& op) {
  const bool is_refused = op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
  TORCH_CHECK(
      !is_refused, "NPU error: operation not permitted when stream is capturing: ", op.schema().name(),
      " needs results, which do not exist during capture");
}

// Ops with kernels that ignore the declared layout (strides of eigenvectors and, depending on the library, of Fourier
// transforms; sizes of internal results of embedding bags).
inline const std::unordered_set<std::string> FIBS{
    "aten::linalg_eig", "aten::_embedding_bag", "aten::_embedding_bag_forward_only",
    "aten::_fft_c2c", "aten::_fft_c2r", "aten::_fft_r2c"};

// Infer the results of a call without running it, and push them with new memory to the stack; return false and change
// nothing if the op cannot infer them.
inline bool foretell(
    const c10::OperatorHandle& op, const c10::OperatorHandle& called, torch::jit::Stack& stack, bool& has_made) {
  const auto& schema = op.schema();
  if (FIBS.count(schema.name())) {
    return false;
  }
  torch::jit::Stack trial(stack);
  try {
    Prepared guess(schema, &trial, 0, As::META, nullptr);
    for (auto& [at, generator] : guess.draws) {
      trial[at] = c10::IValue();
    }
    {
      Below below;
      called.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &trial);
    }
    guess.shown.settle();
    hide_results(schema, guess.shown, &trial);
    has_made = guess.shown.has_made();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception&) {
    return false;  // the kernel reports errors of the call
  }
  stack = std::move(trial);
  return true;
}

// Determine results that cannot be inferred: run the call on copies of existing memory.
inline bool try_out(
    Capture* capture, const c10::OperatorHandle& op, const c10::OperatorHandle& called, torch::jit::Stack& stack) {
  const auto& schema = op.schema();
  for (size_t at = 0; at < schema.arguments().size(); ++at) {
    if (is_written(schema, at)) {
      for_each_tensor(stack[at], [&](const at::Tensor& tensor) {
        if (is_npu(tensor)) {
          capture->shadow(tensor.storage());
        }
      });
    }
  }
  Prepared now(schema, &stack, 0, As::SHADOW, capture);
  auto states = now.draws;  // a capture does not advance the generators themselves
  for (auto& [at, generator] : states) {
    generator = generator.clone();
  }
  call_on_backing(called, &stack, 0, states);
  now.shown.settle();
  hide_results(schema, now.shown, &stack);
  return now.shown.has_made();
}

// Return the results of a call that runs later, as tensors of the backing device.
inline std::vector<at::Tensor> results_later(
    const c10::FunctionSchema& schema, const torch::jit::Stack& stack, Shown& shown, std::vector<Range>& ranges) {
  std::vector<at::Tensor> targets;
  for (size_t at = stack.size() - schema.returns().size(); at < stack.size(); ++at) {
    for_each_tensor(stack[at], [&](const at::Tensor& made) {
      targets.push_back(shown.show(made, true));
      add_range(ranges, made, true);
      if (checks_memory.load(std::memory_order_relaxed)) {
        look_at(schema.name(), made, false, true);
      }
    });
  }
  return targets;
}

// Record a call on a captured stream without running it.
inline void capture_call(
    Capture* capture, const c10::OperatorHandle& op, const c10::OperatorHandle& called, torch::jit::Stack* stack) {
  refuse_values(op);
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size(), begin = stack->size() - count;
  torch::jit::Stack kept(stack->begin() + static_cast<int64_t>(begin), stack->end()), made(kept);
  bool writes = false, has_made = false;
  for (size_t at = 0; at < count; ++at) {
    writes |= is_written(schema, at);
  }
  auto ranges = ranges_of(schema, kept, 0);
  if (!foretell(op, called, made, has_made)) {
    has_made = try_out(capture, op, called, made);
  }
  stack->resize(begin);
  stack->insert(stack->end(), made.begin(), made.end());
  if (!writes && !has_made && !schema.returns().empty()) {
    return;  // a view; ops without results have other effects
  }
  Prepared later(schema, &kept, 0, As::LOG, capture);
  auto targets = results_later(schema, *stack, later.shown, ranges);
  note(stream_of(capture->device, current_streams.at(capture->device)), schema.name(), ranges);
  auto run = again(called, std::move(kept), targets, later.draws, schema.returns().size());
  capture->add(schema.name(), std::move(run), std::move(targets));
}

// Return whether a call can be queued: the host must not need its results, and they must be inferable.
inline bool may_wait(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t begin) {
  const auto& schema = op.schema();
  if (op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape)) {
    return false;
  }
  for (const auto& result : schema.returns()) {
    const auto kind = result.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) {
      return false;
    }
  }
  for (size_t at = begin; at < stack.size(); ++at) {
    bool is_foreign = stack[at].isOptionalTensorList();
    for_each_tensor(stack[at], [&](const at::Tensor& tensor) {
      is_foreign |= tensor.defined() && !is_npu(tensor) && tensor.dim() > 0;
    });
    if (is_foreign) {
      return false;
    }
  }
  return true;
}

// Queue a call; return false and change nothing if it cannot wait.
inline bool give_call(const c10::OperatorHandle& op, const c10::OperatorHandle& called, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size(), begin = stack->size() - count;
  if (!may_wait(op, *stack, begin)) {
    return false;
  }
  torch::jit::Stack kept(stack->begin() + static_cast<int64_t>(begin), stack->end()), made(kept);
  bool writes = false, has_made = false;
  for (size_t at = 0; at < count; ++at) {
    writes |= is_written(schema, at);
  }
  auto ranges = ranges_of(schema, kept, 0);
  if (!foretell(op, called, made, has_made)) {
    return false;
  }
  stack->resize(begin);
  stack->insert(stack->end(), made.begin(), made.end());
  if (!writes && !has_made && !schema.returns().empty()) {
    return true;  // a view
  }
  for (auto& value : kept) {
    if (value.isTensor() && value.toTensor().defined() && !is_npu(value.toTensor())) {
      value = value.toTensor().clone();  // a number on the host is read when the call is queued
    }
  }
  Prepared later(schema, &kept, 0, As::NOW, nullptr);
  for (auto& [at, generator] : later.draws) {
    std::lock_guard<std::mutex> guard(generator.mutex());
    kept[at] = static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->draw();
  }
  auto targets = results_later(schema, *stack, later.shown, ranges);
  const auto device = later.shown.device->index();
  note(stream_of(device, current_streams.at(device)), schema.name(), ranges);
  auto run = again(called, std::move(kept), std::move(targets), {}, schema.returns().size());
  order().give(current_key(device), {schema.name(), std::move(run)});
  return true;
}

// Replace a call in a captured graph; return false and do nothing if the stream has no update.
inline std::atomic<int> updates_under_way{0};
bool update_copy(const at::Tensor& source, const at::Tensor& target);
bool update_call(const c10::OperatorHandle& op, const c10::OperatorHandle& called, torch::jit::Stack* stack);

// Call an op on the backing device. `called` may be another op with the same arguments.
inline void run_on_backing(const c10::OperatorHandle& op, const c10::OperatorHandle& called, torch::jit::Stack* stack) {
  if (captures_under_way.load(std::memory_order_relaxed) != 0) {
    if (Capture* capture = capture_here(current_device)) {
      capture_call(capture, op, called, stack);
      return;
    }
  }
  if (updates_under_way.load(std::memory_order_relaxed) != 0 && update_call(op, called, stack)) {
    return;
  }
  const auto stream = stream_of(current_device, current_streams.at(current_device));
  refuse_on_waiting(stream);
  if (order().is_on.load(std::memory_order_relaxed)) {
    if (give_call(op, called, stack)) {
      return;
    }
    order().finish(key_of(stream));
    for (size_t at = stack->size() - op.schema().arguments().size(); at < stack->size(); ++at) {
      for_each_tensor((*stack)[at], [](const at::Tensor& tensor) {
        if (is_npu(tensor)) {
          order().finish(current_key(tensor.device().index()));
        }
      });
    }
  }
  const auto& schema = op.schema();
  const size_t begin = stack->size() - schema.arguments().size();
  auto ranges = ranges_of(schema, *stack, begin);
  Prepared now(schema, stack, begin, As::NOW, nullptr);
  call_on_backing(called, stack, begin, now.draws);
  now.shown.settle();
  hide_results(schema, now.shown, stack);
  if (checks_races.load(std::memory_order_relaxed)) {
    if (now.shown.has_made()) {
      for (size_t at = begin; at < stack->size(); ++at) {
        for_each_tensor((*stack)[at], [&](const at::Tensor& made) { add_range(ranges, made, true); });
      }
    } else if (is_view(schema)) {
      return;
    }
    note(stream, schema.name(), ranges);
    if (!may_wait(op, {}, 0)) {
      races().host_waits(key_of(stream));
    }
  }
}

inline void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_on_backing(op, op, stack);
}

// Fallback for tensors of other layouts.
inline void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.schema().name(),
      " got sparse, nested or quantized tensors: the simulated npu device supports only plain strided tensors");
}

}  // namespace sim
