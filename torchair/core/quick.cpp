// What every replay asks of hundreds of tensors, without a Python object per answer.
//
// The tensors of a model are rarely in the processor's cache when a call begins, so each loop asks for the
// memory that the next one reads before anybody waits for it.

#include <Python.h>

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <memory>
#include <utility>
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

// Is the tensor of each pair (index, address) where the pair says? -1 with a Python error, else 0 or 1.
int are_in_place(PyObject* args, const Numbers& pairs) {
  std::vector<c10::TensorImpl*> tensors;
  if (!tensors_at(args, pairs, 2, tensors)) {
    return -1;
  }
  for (auto* tensor : tensors) {
    if (!tensor->has_storage()) {
      return 0;
    }
    __builtin_prefetch(tensor->unsafe_storage().unsafeGetStorageImpl());
  }
  uint64_t difference = 0;
  for (size_t at = 0; at < tensors.size(); ++at) {
    difference |= reinterpret_cast<uint64_t>(tensors[at]->data()) ^ static_cast<uint64_t>(pairs.data[2 * at + 1]);
  }
  return difference == 0;
}

// same_addresses(args, pairs)
PyObject* same_addresses(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (!are_list_and_bytes(given, count)) {
    return nullptr;
  }
  const int answer = are_in_place(given[0], Numbers(given[1]));
  return answer < 0 ? nullptr : PyBool_FromLong(answer);
}

// A call as it was: what must not have changed for its recording to serve again.
struct Likeness {
  struct Shape {
    Py_ssize_t index;
    std::vector<int64_t> sizes;
  };
  // An output's memory when nobody outside holds it. Whoever made the likeness keeps the object.
  struct Rest {
    PyObject* object;
    c10::StorageImpl* storage;
    size_t uses;
    Py_ssize_t references;
  };

  PyObject* pairs = nullptr;
  bool inference = false;
  std::vector<Shape> shapes;
  std::vector<Rest> outputs;

  ~Likeness() { Py_XDECREF(pairs); }

  bool is_free() const {
    for (const auto& rest : outputs) {
      if (c10::raw::intrusive_ptr::use_count(rest.storage) > rest.uses || Py_REFCNT(rest.object) > rest.references) {
        return false;
      }
    }
    return true;
  }

  bool has_shapes(PyObject* args) const {
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(args);
    for (const auto& shape : shapes) {
      if (shape.index >= count) {
        return false;
      }
      PyObject* item = PySequence_Fast_GET_ITEM(args, shape.index);
      if (!THPVariable_Check(item) || THPVariable_Unpack(item).sizes() != c10::IntArrayRef(shape.sizes)) {
        return false;
      }
    }
    return true;
  }
};

constexpr const char* LIKENESS = "torchair_quick.likeness";

void forget(PyObject* capsule) { delete static_cast<Likeness*>(PyCapsule_GetPointer(capsule, LIKENESS)); }

// likeness(pairs, shapes, outputs): shapes are (index, sizes), outputs (anything, storage) and nobody holds one.
PyObject* likeness(PyObject*, PyObject* given) {
  PyObject *pairs = nullptr, *shapes = nullptr, *outputs = nullptr;
  if (!PyArg_ParseTuple(given, "O!O!O!", &PyBytes_Type, &pairs, &PyList_Type, &shapes, &PyList_Type, &outputs)) {
    return nullptr;
  }
  auto made = std::make_unique<Likeness>();
  made->inference = c10::InferenceMode::is_enabled();
  for (Py_ssize_t at = 0; at < PyList_GET_SIZE(shapes); ++at) {
    Py_ssize_t index = 0;
    PyObject* sizes = nullptr;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(shapes, at), "nO!", &index, &PyTuple_Type, &sizes)) {
      return nullptr;
    }
    Likeness::Shape shape{index, {}};
    for (Py_ssize_t dim = 0; dim < PyTuple_GET_SIZE(sizes); ++dim) {
      shape.sizes.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, dim)));
    }
    made->shapes.push_back(std::move(shape));
  }
  for (Py_ssize_t at = 0; at < PyList_GET_SIZE(outputs); ++at) {
    PyObject *name = nullptr, *object = nullptr;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(outputs, at), "OO", &name, &object)) {
      return nullptr;
    }
    if (!THPStorage_Check(object)) {
      PyErr_SetString(PyExc_TypeError, "expected a storage");
      return nullptr;
    }
    auto* storage = THPStorage_Unpack(object).unsafeGetStorageImpl();
    made->outputs.push_back({object, storage, c10::raw::intrusive_ptr::use_count(storage), Py_REFCNT(object)});
  }
  if (PyErr_Occurred()) {
    return nullptr;
  }
  made->pairs = Py_NewRef(pairs);
  PyObject* capsule = PyCapsule_New(made.get(), LIKENESS, forget);
  if (capsule != nullptr) {
    made.release();
  }
  return capsule;
}

// is_like(args, likeness): may the recording serve this call as it served the one before?
PyObject* is_like(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 2 || !(PyList_CheckExact(given[0]) || PyTuple_CheckExact(given[0]))) {
    PyErr_SetString(PyExc_TypeError, "expected a list or tuple, and a likeness");
    return nullptr;
  }
  auto* known = static_cast<Likeness*>(PyCapsule_GetPointer(given[1], LIKENESS));
  if (known == nullptr) {
    return nullptr;
  }
  const bool is_plain = !c10::GradMode::is_enabled() && c10::InferenceMode::is_enabled() == known->inference &&
      known->is_free() && known->has_shapes(given[0]);
  if (!is_plain) {
    Py_RETURN_FALSE;
  }
  const int answer = are_in_place(given[0], Numbers(known->pairs));
  return answer < 0 ? nullptr : PyBool_FromLong(answer);
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
    {"likeness", likeness, METH_VARARGS, nullptr},
    {"is_like", as_method(is_like), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "torchair_quick", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_torchair_quick() { return PyModule_Create(&definition); }
