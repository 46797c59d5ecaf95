// Compiled programs of the backing device, called with tensors of the simulated one.
#pragma once

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "dispatch.h"

namespace sim {

inline bool is_tensor(const py::handle& value) {
  return THPVariable_Check(value.ptr());
}

// The same values, with other tensors in place of each.
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

// The results of `program(args)`, computed on the backing device. `written` are the places of arguments it writes.
inline py::list run_program(
    const py::object& program, const py::list& args, const std::vector<size_t>& written, c10::DeviceIndex device) {
  static const std::string name = "program";
  Capture* capture = capture_here(device);
  if (capture == nullptr) {
    refuse_on_waiting(stream_of(device, current_streams.at(device)));
    Shown now(name, true);
    now.device = c10::Device(NPU, device);
    py::sequence results = program(show_all(now, args));
    return hide_all(now, results);
  }
  for (size_t at : written) {
    capture->shadow(THPVariable_Unpack(py::object(args[at]).ptr()).storage());
  }
  py::list made;
  {
    Shown now(name, true, As::SHADOW, capture);
    now.device = c10::Device(NPU, device);
    made = hide_all(now, program(show_all(now, args)));
  }
  Shown later(name, true, As::LOG, capture);
  py::list kept = show_all(later, args);
  std::vector<at::Tensor> targets;
  for (const auto& result : made) {
    targets.push_back(is_tensor(result) ? later.show(THPVariable_Unpack(result.ptr()), true) : at::Tensor());
  }
  capture->tasks.push_back({name, [program, kept, targets] {
                              py::gil_scoped_acquire gil;
                              // A program may clear its arguments.
                              auto args = py::reinterpret_steal<py::list>(PyList_GetSlice(kept.ptr(), 0, kept.size()));
                              py::sequence results = program(args);
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
                            }});
  return made;
}

}  // namespace sim
