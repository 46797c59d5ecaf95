// Kernels of the device: creating and resizing tensors, views, copies, and ops for which torch has one kernel per
// device.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_copy_from_and_resize_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "dispatch.h"

namespace sim {

// The allocator uses the current device.
struct OnDevice {
  c10::DeviceIndex before = current_device;
  explicit OnDevice(std::optional<c10::Device> device) {
    if (device && device->has_index()) {
      check_device(device->index());
      current_device = device->index();
    }
  }
  ~OnDevice() { current_device = before; }
};

inline at::Tensor empty(
    c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
    std::optional<at::Device> device, std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin_memory.value_or(false), "only dense CPU tensors can be pinned");
  TORCH_CHECK_NOT_IMPLEMENTED(
      layout.value_or(at::kStrided) == at::kStrided, "the simulated device supports only strided tensors");
  OnDevice here(device);
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      dtype.value_or(c10::get_default_dtype_as_scalartype()), format);
}

inline at::Tensor empty_strided(
    c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  OnDevice here(device);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &device_allocator(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(c10::get_default_dtype_as_scalartype()));
}

// Zeros without memory, which autograd creates.
inline at::Tensor zeros_without_memory(
    c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  OnDevice here(device);
  at::native::ZeroTensorAllocator none(c10::Device(NPU, current_device));
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &none,
      c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor}),
      dtype.value_or(c10::get_default_dtype_as_scalartype()), std::nullopt);
}

inline at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  static const std::string name = "aten::copy_";
  Below below;
  Capture* capture = capture_here(is_npu(target) ? target.device().index() : source.device().index());
  const auto device = is_npu(target) ? target.device().index() : source.device().index();
  const auto stream = stream_of(device, current_streams.at(device));
  std::vector<Range> ranges;
  add_range(ranges, source, false);
  add_range(ranges, target, true);
  if (checks_memory.load(std::memory_order_relaxed)) {
    look_at(name, source, true, false);
    look_at(name, target, false, true);
  }
  if (capture == nullptr) {
    if (updates_under_way.load(std::memory_order_relaxed) != 0 && update_copy(source, target)) {
      return target;
    }
    refuse_on_waiting(stream);
    note(stream, name, ranges);
    const bool is_read = !is_npu(target) && !(non_blocking && target.is_pinned());
    if (is_read) {
      finish(stream);
    }
    Shown from(name, true), to(name, true);
    const at::Tensor written = to.show(target, true);
    if (is_read || !order().is_on) {
      written.copy_(from.show(source, false));
      return target;
    }
    // Copy immediately what the host may change afterwards.
    const bool is_host = !is_npu(source) && !(non_blocking && source.is_pinned());
    const at::Tensor read = is_host ? source.clone() : from.show(source, false);
    order().give(key_of(stream), {name, [read, written] {
                                    Below below;
                                    written.copy_(read);
                                    return true;
                                  }});
    return target;
  }
  const bool is_on_device = is_npu(source) && is_npu(target);
  TORCH_CHECK(
      is_on_device || (non_blocking && (is_npu(source) ? target : source).is_pinned()),
      "NPU error: operation not permitted when stream is capturing: copies between host and device need pinned memory "
      "and non_blocking=True");
  Shown from(name, true, As::LOG, capture), to(name, true, As::LOG, capture);
  const at::Tensor read = from.show(source, false), written = to.show(target, true);
  note(stream, name, ranges);
  auto run = [read, written] {
    Below below;
    written.copy_(read);
    return true;
  };
  capture->add(name, run, {written});
  return target;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  at::native::resize_output(target, source.sizes());
  return copy_from(source, target, false);
}

// torch would copy the memory itself, as host memory.
inline void make_room(const c10::Storage& storage, size_t bytes) {
  if (storage.nbytes() < bytes) {
    resize_storage(storage, bytes);
  }
}

inline const at::Tensor& resize_(
    const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  OnDevice here(self.device());
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  make_room(
      self.storage(),
      at::detail::computeStorageNbytesContiguous(sizes, self.dtype().itemsize(), self.storage_offset()));
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

inline at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  OnDevice here(self.device());
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size), strides = C10_AS_INTARRAYREF_SLOW(stride);
  const auto each = self.dtype().itemsize();
  make_room(
      source, sizes.size() == strides.size()
          ? at::detail::computeStorageNbytes(sizes, strides, each, offset.expect_int())
          : at::detail::computeStorageNbytesContiguous(sizes, each, offset.expect_int()));
  return at::native::set_storage_cpu_(
      self, std::move(source), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

inline at::Tensor& set_nothing(at::Tensor& self) {
  OnDevice here(self.device());
  c10::Storage fresh(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, device_allocator().allocate(0), &device_allocator(), true));
  return set_storage(self, std::move(fresh), 0, {0}, {});
}

inline at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

inline at::Tensor as_strided(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  const auto at = offset ? std::make_optional(offset->expect_int()) : std::nullopt;
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), at);
}

inline at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

// Ops that draw without a generator argument: use the generator of the device, not of the host.
inline std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0 || input.numel() == 0) {
    return {input.clone(), at::ones_like(input, at::kBool)};
  }
  if (p == 1) {
    return {at::zeros_like(input), at::zeros_like(input, at::kBool)};
  }
  auto mask = at::empty_like(input, at::kBool).bernoulli_(1 - p);
  return {input.mul(mask).mul_(1 / (1 - p)), mask};
}

// One step of an LSTM. The workspace of the forward has its four gates after activation.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cx,
    const std::optional<at::Tensor>& input_bias, const std::optional<at::Tensor>& hidden_bias) {
  auto gates = input_gates + hidden_gates;
  if (input_bias && input_bias->defined()) {
    gates = gates + *input_bias + *hidden_bias;
  }
  const auto parts = gates.chunk(4, 1);
  const auto in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(), out = parts[3].sigmoid();
  const auto cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const std::optional<at::Tensor>& grad_hy, const std::optional<at::Tensor>& grad_cy, const at::Tensor& cx,
    const at::Tensor& cy, const at::Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(4, 1);
  const auto &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const auto tanh = cy.tanh();
  const auto hy = grad_hy && grad_hy->defined() ? *grad_hy : at::zeros_like(cy);
  auto state = hy * out * (1 - tanh * tanh);
  if (grad_cy && grad_cy->defined()) {
    state = state + *grad_cy;
  }
  const auto gates = at::cat(
      {state * cell * in * (1 - in), state * cx * forget * (1 - forget), state * in * (1 - cell * cell),
       hy * tanh * out * (1 - out)},
      1);
  return {gates, state * forget, has_bias ? gates.sum(0) : at::Tensor()};
}

// One step of a GRU. The workspace has its gates after activation, the previous hidden state, and the hidden part of
// the last gate.
inline std::tuple<at::Tensor, at::Tensor> gru_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& hx,
    const std::optional<at::Tensor>& input_bias, const std::optional<at::Tensor>& hidden_bias) {
  const bool has_bias = input_bias && input_bias->defined();
  const auto given = (has_bias ? input_gates + *input_bias : input_gates).chunk(3, 1);
  const auto hidden = (has_bias ? hidden_gates + *hidden_bias : hidden_gates).chunk(3, 1);
  const auto reset = (given[0] + hidden[0]).sigmoid(), update = (given[1] + hidden[1]).sigmoid();
  const auto fresh = (given[2] + reset * hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(
    const at::Tensor& grad, const at::Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const auto &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3], &hidden = parts[4];
  const auto of_fresh = grad * (1 - update) * (1 - fresh * fresh);
  const auto of_update = grad * (hx - fresh) * update * (1 - update);
  const auto of_reset = of_fresh * hidden * reset * (1 - reset);
  const auto input = at::cat({of_reset, of_update, of_fresh}, 1);
  const auto of_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1);
  const at::Tensor none;
  return {
      input, of_hidden, grad * update, has_bias ? input.sum(0) : none, has_bias ? of_hidden.sum(0) : none};
}

// `.data` of a tensor may move between host and device, as for built-in devices.
inline bool may_take_data(const at::Tensor& self, const at::Tensor& from) {
  const auto is_dense = [](const at::Tensor& tensor) {
    return tensor.key_set().has_any(c10::DispatchKeySet(c10::DispatchKey::Dense)) &&
        (is_npu(tensor) || tensor.device().type() == c10::kCPU);
  };
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set()) ||
      (is_dense(self) && is_dense(from));
}

// Do not reuse the memory of a tensor until that stream is done with it.
inline void record_stream(at::Tensor& self, c10::Stream stream) {
  use_on(self.storage().data_ptr(), stream.id());
}

// torch selects convolutions by device and has a separate op for custom devices. The results are contiguous, as its
// fake kernel assumes.
inline void lay_in_rows(torch::jit::Stack* stack, size_t count) {
  for (auto at = stack->end() - static_cast<int64_t>(count); at != stack->end(); ++at) {
    if (at->isTensor() && at->toTensor().defined()) {
      *at = at->toTensor().contiguous();
    }
  }
}

inline void convolution(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const auto called = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  run_on_backing(op, called, stack);
  lay_in_rows(stack, 1);
}

// The backward needs the sizes of the bias after the weight, which the separate op does not have.
inline void convolution_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const auto called = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  const auto& schema = op.schema();
  const size_t begin = stack->size() - schema.arguments().size();
  const bool transposed = (*stack)[begin + 6].toBool();
  const auto groups = (*stack)[begin + 8].toInt();
  const auto weight = (*stack)[begin + 2].toTensor();
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  const auto mask = (*stack)[begin + 9].toBoolList();
  const c10::IValue bias = mask.get(2) ? c10::IValue(c10::List<int64_t>({channels})) : c10::IValue();
  stack->insert(stack->begin() + static_cast<int64_t>(begin) + 3, bias);
  run_on_backing(called, called, stack);
  lay_in_rows(stack, 3);
}

// Devices support histc of integers; the CPU does not.
inline void histc(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::IValue& given = (*stack)[stack->size() - op.schema().arguments().size()];
  const auto dtype = given.toTensor().scalar_type();
  const bool is_whole = c10::isIntegralType(dtype, false) && setup().backing == c10::DeviceType::CPU;
  if (is_whole) {
    given = given.toTensor().to(at::kDouble);
  }
  fallback(op, stack);
  if (is_whole) {
    stack->back() = stack->back().toTensor().to(dtype);
  }
}

inline int64_t attention_choice(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
    std::optional<double>, bool) {
  return static_cast<int64_t>(at::SDPBackend::math);
}

// With memory for the result, these ops resize it twice, with a warning each time.
inline const std::unordered_set<std::string> RESIZING{"aten::mse_loss", "aten::smooth_l1_loss"};

// Use the kernel of the backing device if there is one; otherwise torch decomposes the op.
inline void prefer_kernels() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static std::vector<c10::RegistrationHandleRAII> kept;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    const bool is_composed = op &&
        (RESIZING.count(name.name) || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
          op->hasKernelForDispatchKey(c10::DispatchKey::Autograd)));
    if (is_composed && name.name.rfind("aten::", 0) == 0 && op->hasKernelForDispatchKey(backing_key()) &&
        !op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      kept.push_back(dispatcher.registerImpl(
          name, c10::DispatchKey::PrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&fallback>(), std::nullopt,
          nullptr, "torchair.sim"));
    }
  }
}

}  // namespace sim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &sim::attention_choice)
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&sim::fallback>());
}

#define REFUSED(KEY)                                                              \
  TORCH_LIBRARY_IMPL(_, KEY, library) {                                           \
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&sim::refuse>());  \
  }
REFUSED(SparsePrivateUse1)
REFUSED(SparseCsrPrivateUse1)
REFUSED(NestedTensorPrivateUse1)
REFUSED(QuantizedPrivateUse1)
#undef REFUSED

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &sim::empty);
  library.impl("empty_strided", &sim::empty_strided);
  library.impl("_efficientzerotensor", &sim::zeros_without_memory);
  library.impl("_copy_from", &sim::copy_from);
  library.impl("_copy_from_and_resize", &sim::copy_from_and_resize);
  library.impl("resize_", &sim::resize_);
  library.impl("set_.source_Storage_storage_offset", &sim::set_storage);
  library.impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
  library.impl("set_", &sim::set_nothing);
  library.impl("view", &sim::view);
  library.impl("as_strided", &sim::as_strided);
  library.impl("_reshape_alias", &sim::reshape_alias);
  library.impl("is_set_to", &at::native::is_set_to);
  library.impl("native_dropout", &sim::native_dropout);
  library.impl("_thnn_fused_lstm_cell", &sim::lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &sim::lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", &sim::gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", &sim::gru_cell_backward);
  library.impl("record_stream", &sim::record_stream);
  library.impl("_has_compatible_shallow_copy_type", &sim::may_take_data);
  // The kernels that torch would use for these ops depend on the device type.
  for (const char* name : {"mode.values", "conj_physical_"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&sim::fallback>());
  }
  library.impl("histc", torch::CppFunction::makeFromBoxedFunction<&sim::histc>());
  library.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&sim::convolution>());
  library.impl(
      "convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&sim::convolution_backward>());
}

// A copy resolves conjugate and negative bits itself; torch would clone the tensor first.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
  library.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
  library.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
