// Two questions that every replay asks of hundreds of tensors, without a Python object per answer.
//
// The tensors of a model are rarely in the processor's cache when a call begins, so each loop asks for the
// memory that the next one reads before anybody waits for it.

#include <Python.h>

#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <vector>

namespace {

// Pairs or single numbers that Python packed as array("Q").
struct Numbers {
  const int64_t* data;
  Py_ssize_t count;

  explicit Numbers(PyObject* bytes)
      : data(reinterpret_cast<const int64_t*>(PyBytes_AS_STRING(bytes))),
        count(PyBytes_GET_SIZE(bytes) / static_cast<Py_ssize_t>(sizeof(int64_t))) {}
};

constexpr Py_ssize_t AHEAD = 8;

// The tensors at every `step`-th number; false with a Python error where there is none.
bool tensors_at(PyObject* args, const Numbers& numbers, Py_ssize_t step, std::vector<c10::TensorImpl*>& found) {
  PyObject** items = PySequence_Fast_ITEMS(args);
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(args);
  found.reserve(numbers.count / step);
  for (Py_ssize_t at = 0; at < numbers.count; at += step) {
    const int64_t index = numbers.data[at];
    if (index < 0 || index >= size || !THPVariable_Check(items[index])) {
      PyErr_Format(PyExc_TypeError, "argument %lld is not a tensor", static_cast<long long>(index));
      return false;
    }
    const Py_ssize_t later = at + AHEAD * step;
    if (later < numbers.count && numbers.data[later] < size) {
      __builtin_prefetch(items[numbers.data[later]]);
    }
    found.push_back(THPVariable_Unpack(items[index]).unsafeGetTensorImpl());
    __builtin_prefetch(found.back());
  }
  return true;
}

bool are_list_and_bytes(PyObject* const* given, Py_ssize_t count) {
  if (count == 2 && (PyList_CheckExact(given[0]) || PyTuple_CheckExact(given[0])) && PyBytes_CheckExact(given[1])) {
    return true;
  }
  PyErr_SetString(PyExc_TypeError, "expected a list or tuple, and bytes");
  return false;
}

// same_addresses(args, pairs): is the tensor of each pair (index, address) where the pair says?
PyObject* same_addresses(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (!are_list_and_bytes(given, count)) {
    return nullptr;
  }
  const Numbers pairs(given[1]);
  std::vector<c10::TensorImpl*> tensors;
  if (!tensors_at(given[0], pairs, 2, tensors)) {
    return nullptr;
  }
  for (auto* tensor : tensors) {
    if (!tensor->has_storage()) {
      Py_RETURN_FALSE;
    }
    __builtin_prefetch(tensor->unsafe_storage().unsafeGetStorageImpl());
  }
  uint64_t difference = 0;
  for (size_t at = 0; at < tensors.size(); ++at) {
    difference |= reinterpret_cast<uint64_t>(tensors[at]->data()) ^ static_cast<uint64_t>(pairs.data[2 * at + 1]);
  }
  return PyBool_FromLong(difference == 0);
}

// raise_versions(args, indices): autograd is to know that these tensors were written.
PyObject* raise_versions(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (!are_list_and_bytes(given, count)) {
    return nullptr;
  }
  const Numbers indices(given[1]);
  std::vector<c10::TensorImpl*> tensors;
  if (!tensors_at(given[0], indices, 1, tensors)) {
    return nullptr;
  }
  for (auto* tensor : tensors) {
    if (!tensor->is_inference()) {
      tensor->bump_version();
    }
  }
  Py_RETURN_NONE;
}

template <typename F>
PyCFunction as_method(F function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"same_addresses", as_method(same_addresses), METH_FASTCALL, nullptr},
    {"raise_versions", as_method(raise_versions), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "torchair_quick", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_torchair_quick() { return PyModule_Create(&definition); }
