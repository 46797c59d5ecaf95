// What every replay asks of hundreds of tensors, without a Python object per answer.
//
// The tensors of a model are rarely in the processor's cache when a call begins, so each loop asks for the
// memory that the next one reads before anybody waits for it.

#include <Python.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/clone.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

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

constexpr Py_ssize_t AHEAD = 8;  // tensors to ask for while one is looked at

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

// Autograd is to know that these tensors were written; false with a Python error where there is none.
bool note_writes(PyObject* args, const Numbers& indices) {
  std::vector<c10::TensorImpl*> tensors;
  if (!tensors_at(args, indices, 1, tensors)) {
    return false;
  }
  for (auto* tensor : tensors) {
    if (!tensor->is_inference()) {
      tensor->bump_version();
    }
  }
  return true;
}

// Numbers of an array("Q") that Python sees too.
struct View {
  Py_buffer buffer{};

  View() = default;
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() {
    if (buffer.obj != nullptr) {
      PyBuffer_Release(&buffer);
    }
  }

  bool open(PyObject* array) { return PyObject_GetBuffer(array, &buffer, PyBUF_WRITABLE) == 0; }
  uint64_t* numbers() const { return static_cast<uint64_t*>(buffer.buf); }
  size_t size() const { return buffer.len / sizeof(uint64_t); }
};

// A fresh tensor like another, in the same place of this storage.
at::Tensor on_storage(const at::Tensor& like, PyObject* storage) {
  at::Tensor made = like.detach();
  auto* tensor = made.unsafeGetTensorImpl();
  tensor->set_allow_tensor_metadata_change(true);
  tensor->set_storage_keep_dtype(THPStorage_Unpack(storage));
  return made;
}

// An output, and which storage it is handed out on.
struct Output {
  Py_ssize_t at;
  at::Tensor like;
};

// Pairs of an index and a tensor.
template <typename Pair>
void read_pairs(PyObject* given, std::vector<Pair>& pairs) {
  for (Py_ssize_t at = 0; at < PyList_GET_SIZE(given); ++at) {
    Py_ssize_t index = 0;
    PyObject* tensor = nullptr;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(given, at), "nO", &index, &tensor)) {
      throw python_error();
    }
    TORCH_CHECK_TYPE(index >= 0 && THPVariable_Check(tensor), "expected an index and a tensor");
    pairs.push_back({index, THPVariable_Unpack(tensor)});
  }
}

void check_storages(PyObject* storages, const std::vector<Output>& outputs) {
  for (Py_ssize_t at = 0; at < PyList_GET_SIZE(storages); ++at) {
    TORCH_CHECK_TYPE(THPStorage_Check(PyList_GET_ITEM(storages, at)), "expected storages");
  }
  for (const auto& output : outputs) {
    TORCH_CHECK_VALUE(output.at < PyList_GET_SIZE(storages), "expected a storage for each output");
  }
}

PyObject* handed_out(const std::vector<Output>& outputs, PyObject* storages) {
  THPObjectPtr results(PyList_New(static_cast<Py_ssize_t>(outputs.size())));
  for (size_t at = 0; results && at < outputs.size(); ++at) {
    PyObject* made = THPVariable_Wrap(on_storage(outputs[at].like, PyList_GET_ITEM(storages, outputs[at].at)));
    if (made == nullptr) {
      return nullptr;
    }
    PyList_SET_ITEM(results.get(), static_cast<Py_ssize_t>(at), made);
  }
  return results.release();
}

// hand_out(outputs, storages)
PyObject* hand_out(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(
      count == 2 && PyList_CheckExact(given[0]) && PyList_CheckExact(given[1]), "expected two lists");
  std::vector<Output> outputs;
  read_pairs(given[0], outputs);
  check_storages(given[1], outputs);
  return handed_out(outputs, given[1]);
  END_HANDLE_TH_ERRORS
}

// clones(tensors)
PyObject* clones(PyObject*, PyObject* given) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_CheckExact(given), "expected a list");
  const Py_ssize_t size = PyList_GET_SIZE(given);
  THPObjectPtr results(PyList_New(size));
  for (Py_ssize_t at = 0; results && at < size; ++at) {
    PyObject* tensor = PyList_GET_ITEM(given, at);
    TORCH_CHECK_TYPE(THPVariable_Check(tensor), "expected tensors");
    PyObject* made = THPVariable_Wrap(THPVariable_Unpack(tensor).clone());
    if (made == nullptr) {
      return nullptr;
    }
    PyList_SET_ITEM(results.get(), at, made);
  }
  return results.release();
  END_HANDLE_TH_ERRORS
}

// A recording that may serve the call after the one it served: what must not have changed since, and all it
// takes to serve: copy inputs, launch, hand out.
struct Spec {
  struct Input {
    Py_ssize_t index;
    at::Tensor target;
  };
  // An output's memory when nobody outside holds it.
  struct Rest {
    PyObject* object;
    c10::StorageImpl* storage;
    uint64_t uses, references, address;
  };
  // Copies that the graph itself makes, of the first inputs, and where each takes its bytes from now.
  struct Head {
    using Set = int (*)(void*, void*, void*, const void*, size_t, int);

    Set set = nullptr;
    int (*forget_error)() = nullptr;  // torch would find it behind its next kernel
    void* graph = nullptr;
    int kind = 0;
    std::vector<void*> nodes;
    View sources;
  };

  // The runtime's own launch.
  struct Direct {
    int (*launch)(void*, void*) = nullptr;
    int (*forget_error)() = nullptr;
    void* graph = nullptr;
    c10::Device device = c10::kCPU;

    bool is_possible() const {
      return launch != nullptr && c10::impl::getDeviceGuardImpl(device.type())->getDevice() == device;
    }
  };

  THPObjectPtr pairs, acquire, release, handle_of, device, turns, launch, give, kept;
  std::vector<THPObjectPtr> refusals;
  std::vector<Input> inputs;
  std::vector<Input> borrowed;  // that lie where the graph reads them
  std::vector<Rest> at_rest;
  std::vector<Output> outputs;
  Head head;
  Direct direct;
  View count;
  bool inference = c10::InferenceMode::is_enabled();
  bool is_over = false;

  bool is_free() const {
    for (const auto& rest : at_rest) {
      if (c10::raw::intrusive_ptr::use_count(rest.storage) > rest.uses ||
          static_cast<uint64_t>(Py_REFCNT(rest.object)) > rest.references ||
          reinterpret_cast<uint64_t>(rest.storage->data()) != rest.address) {
        return false;
      }
    }
    return true;
  }

  static bool has_shapes(PyObject* args, const std::vector<Input>& inputs) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(args);
    for (const auto& input : inputs) {
      PyObject* item = input.index < size ? PySequence_Fast_GET_ITEM(args, input.index) : nullptr;
      if (item == nullptr || !THPVariable_Check(item) || THPVariable_Unpack(item).sizes() != input.target.sizes()) {
        return false;
      }
    }
    return true;
  }

  // Is copying no more than moving bytes?
  static bool is_bytes(const at::Tensor& source, const at::Tensor& target) {
    return source.dtype() == target.dtype() && source.device() == target.device() &&
        (source.strides() == target.strides() || (source.is_contiguous() && target.is_contiguous())) &&
        !source.is_conj() && !source.is_neg();
  }

  // The graph copies its inputs from where they are now; false where that takes more than saying so.
  bool point(PyObject* args) const {
    for (size_t at = 0; at < head.nodes.size(); ++at) {
      const at::Tensor& source = THPVariable_Unpack(PySequence_Fast_GET_ITEM(args, inputs[at].index));
      const at::Tensor& target = inputs[at].target;
      if (!is_bytes(source, target)) {
        return false;
      }
      const auto address = reinterpret_cast<uint64_t>(source.data_ptr());
      if (address == head.sources.numbers()[at]) {
        continue;
      }
      const auto device = target.device();
      if (device.has_index() && c10::impl::getDeviceGuardImpl(device.type())->getDevice() != device) {
        return false;  // a graph belongs to its device
      }
      if (head.set(head.graph, head.nodes[at], target.data_ptr(), source.data_ptr(), target.nbytes(), head.kind) != 0) {
        if (head.forget_error != nullptr) {
          head.forget_error();
        }
        return false;
      }
      head.sources.numbers()[at] = address;
    }
    return true;
  }

  // Copies the inputs that the graph does not.
  void fill(PyObject* args) const {
    std::vector<at::Tensor> sources, targets;
    for (size_t at = head.nodes.size(); at < inputs.size(); ++at) {
      const at::Tensor& source = THPVariable_Unpack(PySequence_Fast_GET_ITEM(args, inputs[at].index));
      if (source.numel() != 0) {
        sources.push_back(source);
        targets.push_back(inputs[at].target);
      }
    }
    if (!sources.empty()) {
      at::_foreach_copy_(targets, sources, /*non_blocking=*/true);
    }
  }

  // On this stream; false with a Python error. Torch's call lets other threads run meanwhile, and has to wait
  // for them afterwards, while those that wait for their turn wait for it.
  bool start(PyObject* stream) {
    if (!direct.is_possible()) {
      return THPObjectPtr(PyObject_CallNoArgs(launch)).get() != nullptr;
    }
    const int status = direct.launch(direct.graph, PyLong_AsVoidPtr(stream));
    if (status != 0 && direct.forget_error != nullptr) {
      direct.forget_error();
    }
    TORCH_CHECK(status == 0, "a recorded graph could not be launched: status ", status);
    return true;
  }

  // What the caller gets, None where this call is not like the one before, nullptr with a Python error.
  PyObject* serve(PyObject* args, PyObject* written) {
    if (is_over) {
      Py_RETURN_NONE;
    }
    THPObjectPtr handle(PyObject_CallOneArg(handle_of, device));
    THPObjectPtr last(handle ? PyObject_GetAttrString(turns, "last_handle") : nullptr);
    const int is_turn = last ? PyObject_RichCompareBool(handle, last, Py_EQ) : -1;
    if (is_turn <= 0) {
      return is_turn < 0 ? nullptr : Py_NewRef(Py_None);
    }
    if (!is_free() || !has_shapes(args, inputs) || !has_shapes(args, borrowed)) {
      Py_RETURN_NONE;
    }
    const int are_same = are_in_place(args, Numbers(pairs));
    if (are_same <= 0) {
      return are_same < 0 ? nullptr : Py_NewRef(Py_None);
    }
    if (!point(args)) {
      Py_RETURN_NONE;
    }
    if (!note_writes(args, Numbers(written))) {
      return nullptr;
    }
    c10::AutoGradMode without_gradients(false);
    fill(args);
    if (!start(handle)) {
      return nullptr;
    }
    ++*count.numbers();
    if (give.get() != Py_None) {
      return PyObject_CallOneArg(give, args);
    }
    return handed_out(outputs, kept);
  }
};

struct Repeat {
  PyObject_HEAD
  Spec* spec;
};

void let_go(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<Repeat*>(self)->spec;
  type->tp_free(self);
  Py_DECREF(type);
}

// repeat(args, written): serve this call, or None.
PyObject* call(PyObject* self, PyObject* given, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *args = nullptr, *written = nullptr;
  if (!PyArg_ParseTuple(given, "O!O!", &PyTuple_Type, &args, &PyBytes_Type, &written)) {
    return nullptr;
  }
  Spec& spec = *reinterpret_cast<Repeat*>(self)->spec;
  if (c10::InferenceMode::is_enabled() != spec.inference) {
    Py_RETURN_NONE;
  }
  for (auto& refusal : spec.refusals) {
    THPObjectPtr answer(PyObject_CallNoArgs(refusal.get()));
    if (!answer || answer.get() != Py_False) {
      return answer ? Py_NewRef(Py_None) : nullptr;
    }
  }
  THPObjectPtr got(PyObject_CallNoArgs(spec.acquire));
  if (!got) {
    return nullptr;
  }
  PyObject* result = nullptr;
  try {
    result = spec.serve(args, written);
  } catch (...) {
    THPObjectPtr released(PyObject_CallNoArgs(spec.release));
    throw;
  }
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  THPObjectPtr released(PyObject_CallNoArgs(spec.release));
  PyErr_Restore(type, value, trace);
  return result;
  END_HANDLE_TH_ERRORS
}

// repeat.end(): the recording is gone.
PyObject* end(PyObject* self, PyObject*) {
  reinterpret_cast<Repeat*>(self)->spec->is_over = true;
  Py_RETURN_NONE;
}

PyMethodDef repeat_methods[] = {{"end", end, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyType_Slot repeat_slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(let_go)},
    {Py_tp_methods, repeat_methods},
    {0, nullptr},
};

PyType_Spec repeat_spec = {
    "torchair_quick.Repeat", sizeof(Repeat), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, repeat_slots};

PyTypeObject* repeat_type = nullptr;

THPObjectPtr owned(PyObject* object) { return THPObjectPtr(Py_NewRef(object)); }

// An attribute, new; an error where it is of another type.
THPObjectPtr field(PyObject* of, const char* name, PyTypeObject* type = nullptr) {
  THPObjectPtr found(PyObject_GetAttrString(of, name));
  if (!found) {
    throw python_error();
  }
  TORCH_CHECK_TYPE(
      type == nullptr || PyObject_TypeCheck(found.get(), type), name, ": expected a ", type ? type->tp_name : "");
  return found;
}

unsigned long long number(PyObject* of, const char* name) {
  THPObjectPtr found = field(of, name, &PyLong_Type);
  const unsigned long long value = PyLong_AsUnsignedLongLong(found);
  if (PyErr_Occurred()) {
    throw python_error();
  }
  return value;
}

void open(View& view, PyObject* of, const char* name) {
  if (!view.open(field(of, name))) {
    throw python_error();
  }
}

void read_head(PyObject* given, Spec::Head& head) {
  if (given == Py_None) {
    return;
  }
  head.set = reinterpret_cast<Spec::Head::Set>(number(given, "setter"));
  head.forget_error = reinterpret_cast<int (*)()>(number(given, "forget_error"));
  head.graph = reinterpret_cast<void*>(number(given, "graph"));
  head.kind = static_cast<int>(number(given, "kind"));
  open(head.sources, given, "sources");
  THPObjectPtr nodes = field(given, "nodes", &PyList_Type);
  for (Py_ssize_t at = 0; at < PyList_GET_SIZE(nodes.get()); ++at) {
    head.nodes.push_back(PyLong_AsVoidPtr(PyList_GET_ITEM(nodes.get(), at)));
  }
  if (PyErr_Occurred()) {
    throw python_error();
  }
  TORCH_CHECK_VALUE(
      head.sources.size() == head.nodes.size() && head.set != nullptr, "expected a source for each node");
}

void read_direct(PyObject* given, Spec::Direct& direct) {
  if (given == Py_None) {
    return;
  }
  THPObjectPtr device = field(given, "device");
  TORCH_CHECK_TYPE(THPDevice_Check(device.get()), "device: expected a device");
  direct.launch = reinterpret_cast<int (*)(void*, void*)>(number(given, "address"));
  direct.graph = reinterpret_cast<void*>(number(given, "graph"));
  direct.device = reinterpret_cast<THPDevice*>(device.get())->device;
  direct.forget_error = reinterpret_cast<int (*)()>(number(given, "forget_error"));
}

// What is known of an AtRest.
void read_rest(PyObject* rest, Spec& spec) {
  // References to a storage are counted, so the list is kept and no storage of it.
  spec.kept = field(rest, "storages", &PyList_Type);
  check_storages(spec.kept, spec.outputs);
  THPObjectPtr packed = field(rest, "numbers", &PyBytes_Type);
  const Numbers numbers(packed);
  TORCH_CHECK_VALUE(numbers.count == 3 * PyList_GET_SIZE(spec.kept.get()), "expected three numbers of each");
  for (Py_ssize_t at = 0; at < PyList_GET_SIZE(spec.kept.get()); ++at) {
    PyObject* object = PyList_GET_ITEM(spec.kept.get(), at);
    auto number = [&](int place) { return static_cast<uint64_t>(numbers.data[3 * at + place]); };
    spec.at_rest.push_back(
        {object, THPStorage_Unpack(object).unsafeGetStorageImpl(), number(0), number(1), number(2)});
  }
}

// repeat(spec): of a FastReplaySpec. The same inference mode holds as in the calls.
PyObject* repeat(PyObject*, PyObject* given) {
  HANDLE_TH_ERRORS
  auto spec = std::make_unique<Spec>();
  THPObjectPtr turns = field(given, "turns");
  THPObjectPtr lock = field(turns, "lock");
  spec->pairs = field(field(given, "addresses"), "pairs", &PyBytes_Type);
  spec->acquire = field(lock, "acquire");
  spec->release = field(lock, "release");
  spec->handle_of = field(turns, "handle_of");
  spec->device = field(turns, "index");
  spec->launch = field(given, "launch");
  spec->give = field(given, "give");
  THPObjectPtr refusals = field(given, "refusals", &PyTuple_Type);
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(refusals.get()); ++at) {
    spec->refusals.push_back(owned(PyTuple_GET_ITEM(refusals.get(), at)));
  }
  open(spec->count, given, "count");
  read_head(field(given, "head"), spec->head);
  read_direct(field(given, "direct"), spec->direct);
  read_pairs(field(given, "inputs", &PyList_Type), spec->inputs);
  read_pairs(field(given, "borrowed", &PyList_Type), spec->borrowed);
  read_pairs(field(given, "outputs", &PyList_Type), spec->outputs);
  read_rest(field(given, "rest"), *spec);
  spec->turns = std::move(turns);
  TORCH_CHECK_VALUE(spec->count.size() == 1, "expected one number as a count");
  TORCH_CHECK_VALUE(spec->head.nodes.size() <= spec->inputs.size(), "expected an input for each node");
  auto* made = PyObject_New(Repeat, repeat_type);
  if (made == nullptr) {
    return nullptr;
  }
  made->spec = spec.release();
  return reinterpret_cast<PyObject*>(made);
  END_HANDLE_TH_ERRORS
}

// raise_versions(args, indices)
PyObject* raise_versions(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (!are_list_and_bytes(given, count) || !note_writes(given[0], Numbers(given[1]))) {
    return nullptr;
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
    {"hand_out", as_method(hand_out), METH_FASTCALL, nullptr},
    {"clones", clones, METH_O, nullptr},
    {"repeat", repeat, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "torchair_quick", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_torchair_quick() {
  repeat_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&repeat_spec));
  return repeat_type == nullptr ? nullptr : PyModule_Create(&definition);
}
