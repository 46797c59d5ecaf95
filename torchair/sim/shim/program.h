// Compiled programs of the backing device, called with tensors of the simulated device.
#pragma once

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "dispatch.h"

namespace sim {

inline bool is_tensor(const py::handle& value) {
  return THPVariable_Check(value.ptr());
}

// Copy nested values, with each tensor replaced.
template <typename Change>
py::list changed(const py::sequence& values, Change change) {
  py::list all;
  for (const auto& value : values) {
    if (is_tensor(value)) {
      all.append(change(THPVariable_Unpack(value.ptr())));
    } else {
      all.append(value);
    }
  }
  return all;
}

inline py::list show_all(Shown& shown, const py::sequence& args) {
  return changed(args, [&](const at::Tensor& tensor) { return shown.show(tensor, false); });
}

inline py::list hide_all(Shown& shown, const py::sequence& results) {
  return changed(results, [&](const at::Tensor& tensor) { return shown.hide(tensor); });
}

// Properties of a program's results by those of its arguments: stored when it runs, used when it is captured.
struct Memo {
  struct Result {
    int64_t argument;  // the argument that owns the memory; -1: its own memory
    size_t storage, bytes;  // index of the storage among those of the program
    std::vector<int64_t> sizes, strides;
    int64_t offset;
    caffe2::TypeMeta dtype;
  };
  std::map<std::string, std::vector<std::optional<Result>>> known;
  std::map<std::string, py::list> values;  // results that are not tensors

  // This runs in every call, so numbers are written as raw memory.
  static std::string key_of(const py::sequence& args) {
    std::string key;
    const auto write = [&key](int64_t number) { key.append(reinterpret_cast<const char*>(&number), sizeof number); };
    for (const auto& arg : args) {
      if (is_tensor(arg)) {
        const at::Tensor& tensor = THPVariable_Unpack(arg.ptr());
        write(tensor.dim());
        for (const int64_t number : tensor.sizes()) {
          write(number);
        }
        for (const int64_t number : tensor.strides()) {
          write(number);
        }
        write(tensor.storage_offset());
        write(static_cast<int64_t>(tensor.scalar_type()));
      } else {
        const auto text = py::repr(arg).cast<std::string>();
        write(-1 - static_cast<int64_t>(text.size()));
        key += text;
      }
    }
    return key;
  }

  void learn(const std::string& key, const py::sequence& args, const py::list& made) {
    std::map<const c10::StorageImpl*, int64_t> of_arguments;
    std::map<const c10::StorageImpl*, size_t> own;
    for (size_t at = 0; at < args.size(); ++at) {
      py::object arg = args[at];
      if (is_tensor(arg)) {
        of_arguments.emplace(THPVariable_Unpack(arg.ptr()).storage().unsafeGetStorageImpl(), at);
      }
    }
    std::vector<std::optional<Result>> results;
    for (const auto& value : made) {
      if (!is_tensor(value)) {
        results.emplace_back(std::nullopt);
        continue;
      }
      const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
      const auto* storage = tensor.storage().unsafeGetStorageImpl();
      auto found = of_arguments.find(storage);
      const size_t number = own.emplace(storage, own.size()).first->second;
      results.push_back(Result{
          found == of_arguments.end() ? -1 : found->second, number, tensor.storage().nbytes(), tensor.sizes().vec(),
          tensor.strides().vec(), tensor.storage_offset(), tensor.dtype()});
    }
    known[key] = std::move(results);
    py::list numbers;
    for (const auto& value : made) {
      numbers.append(is_tensor(value) ? py::none() : py::reinterpret_borrow<py::object>(value));
    }
    values[key] = numbers;
  }

  // Create results with the same properties and uninitialized memory.
  py::list foretold(const std::string& key, const py::sequence& args, c10::DeviceIndex device) {
    std::map<size_t, c10::Storage> own;
    py::list made;
    const auto& results = known.at(key);
    for (size_t at = 0; at < results.size(); ++at) {
      const auto& result = results[at];
      if (!result) {
        made.append(values.at(key)[at]);
        continue;
      }
      c10::Storage storage;
      if (result->argument >= 0) {
        storage = THPVariable_Unpack(py::object(args[result->argument]).ptr()).storage();
      } else {
        auto& one = own[result->storage];
        if (!one) {
          one = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
              c10::StorageImpl::use_byte_size_t(), result->bytes, take_memory(device, result->bytes),
              &device_allocator(), true));
        }
        storage = one;
      }
      at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
          std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), result->dtype);
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(result->sizes, result->strides, result->offset);
      made.append(tensor);
    }
    return made;
  }
};

// A call of a program that runs later and copies its results to the inferred ones. Python objects are released with the
// GIL.
inline std::function<bool()> later_call(const py::object& program, const py::list& args, std::vector<at::Tensor> targets) {
  const auto let_go = [](py::object* object) {
    py::gil_scoped_acquire gil;
    delete object;
  };
  std::shared_ptr<py::object> function(new py::object(program), let_go), kept(new py::object(args), let_go);
  return [function, kept, targets = std::move(targets)] {
    py::gil_scoped_acquire gil;
    // A program may clear its arguments.
    auto own = py::reinterpret_steal<py::list>(PySequence_List(kept->ptr()));
    py::sequence results = (*function)(own);
    Below below;
    for (size_t at = 0; at < targets.size(); ++at) {
      py::object result = results[at];
      if (is_tensor(result) && targets[at].defined()) {
        const at::Tensor& value = THPVariable_Unpack(result.ptr());
        if (value.data_ptr() != targets[at].data_ptr()) {
          targets[at].copy_(value);
        }
      }
    }
    return true;
  };
}

inline std::vector<Range> ranges_of(const py::sequence& args, const std::vector<size_t>& written) {
  std::vector<Range> ranges;
  if (checks_races.load(std::memory_order_relaxed)) {
    for (size_t at = 0; at < args.size(); ++at) {
      py::object arg = args[at];
      if (is_tensor(arg)) {
        const bool writes = std::count(written.begin(), written.end(), at) > 0;
        add_range(ranges, THPVariable_Unpack(arg.ptr()), writes);
      }
    }
  }
  for (size_t at = 0; checks_memory.load(std::memory_order_relaxed) && at < args.size(); ++at) {
    py::object arg = args[at];
    if (is_tensor(arg)) {
      const bool writes = std::count(written.begin(), written.end(), at) > 0;
      look_at("a compiled graph", THPVariable_Unpack(arg.ptr()), !writes, writes);
    }
  }
  return ranges;
}

// Return the results of `program(args)`, computed on the backing device. `written` are the indices of the arguments it
// writes.
inline py::list run_program(
    const py::object& program, const py::list& args, const std::vector<size_t>& written, c10::DeviceIndex device,
    Memo& memo) {
  static const std::string name = "program";
  const std::string key = Memo::key_of(args);
  const auto stream = stream_of(device, current_streams.at(device));
  Capture* capture = capture_here(device);
  const bool is_known = memo.known.count(key) > 0;
  auto ranges = ranges_of(args, written);
  const auto noted = [&](const py::sequence& made) {
    for (const auto& result : made) {
      if (is_tensor(result)) {
        add_range(ranges, THPVariable_Unpack(result.ptr()), true);
        if (checks_memory.load(std::memory_order_relaxed)) {
          look_at(name, THPVariable_Unpack(result.ptr()), false, true);
        }
      }
    }
    note(stream, name, ranges);
  };
  if (capture == nullptr && !(order().is_on && is_known)) {
    refuse_on_waiting(stream);
    if (order().is_on) {
      order().finish(key_of(stream));
    }
    Shown now(name, true);
    now.device = c10::Device(NPU, device);
    py::list made = hide_all(now, program(show_all(now, args)));
    if (!is_known) {
      memo.learn(key, args, made);
    }
    noted(made);
    return made;
  }
  py::list made;
  if (is_known) {
    made = memo.foretold(key, args, device);
  } else {
    for (size_t at : written) {
      capture->shadow(THPVariable_Unpack(py::object(args[at]).ptr()).storage());
    }
    Shown now(name, true, As::SHADOW, capture);
    now.device = c10::Device(NPU, device);
    made = hide_all(now, program(show_all(now, args)));
  }
  Shown later(name, true, capture ? As::LOG : As::NOW, capture);
  later.device = c10::Device(NPU, device);
  const py::list kept = show_all(later, args);
  std::vector<at::Tensor> targets;
  for (const auto& result : made) {
    targets.push_back(is_tensor(result) ? later.show(THPVariable_Unpack(result.ptr()), true) : at::Tensor());
  }
  noted(made);
  auto run = later_call(program, kept, std::move(targets));
  if (capture) {
    capture->add(name, std::move(run));
  } else {
    order().give(key_of(stream), {name, std::move(run)});
  }
  return made;
}

}  // namespace sim
