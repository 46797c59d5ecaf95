// Updates of calls in a captured graph, with other arguments.
#pragma once

#include "dispatch.h"

namespace sim {

// The tasks of one call in a captured graph.
struct Group {
  std::weak_ptr<Capture> graph;
  std::vector<size_t> tasks;
};

inline void begin_group(const c10::Stream& stream) {
  Capture* capture = capture_on(stream);
  TORCH_CHECK(capture != nullptr, "graph_task_group_begin: the stream is not being captured");
  TORCH_CHECK(
      capture->groups.emplace(stream.id(), capture->tasks.size()).second,
      "graph_task_group_begin: the previous group on this stream has not ended");
}

inline Group end_group(const c10::Stream& stream) {
  Capture* capture = capture_on(stream);
  TORCH_CHECK(capture != nullptr, "graph_task_group_end: the stream is not being captured");
  auto begun = capture->groups.find(stream.id());
  TORCH_CHECK(begun != capture->groups.end(), "graph_task_group_end without graph_task_group_begin");
  Group group{capture->weak_from_this(), {}};
  for (size_t at = begun->second; at < capture->tasks.size(); ++at) {
    if (capture->tasks[at].stream == stream.id() && capture->tasks[at].mark < 0) {
      group.tasks.push_back(at);
    }
  }
  capture->groups.erase(begun);
  return group;
}

// A group that is being updated on a stream. The graph gets the new calls when all are complete.
struct Update {
  std::shared_ptr<Capture> graph;
  std::vector<size_t> tasks;
  std::vector<std::function<bool()>> calls;
  bool has_failed = false;  // a call did not match
};

inline void check_there(const Update& update) {
  TORCH_CHECK(!update.graph->was_reset, "the graph was reset during its update");
}

inline std::mutex updates_mutex;
inline std::map<Key, Update> updates;

inline void begin_update(const c10::Stream& stream, const Group& group) {
  auto graph = group.graph.lock();
  TORCH_CHECK(graph && !graph->was_reset, "graph_task_update_begin: the graph of this group no longer exists");
  refuse_in_capture(stream, "graph_task_update_begin");
  std::lock_guard<std::mutex> guard(updates_mutex);
  TORCH_CHECK(
      updates.emplace(key_of(stream), Update{graph, group.tasks}).second,
      "graph_task_update_begin: the previous update on this stream has not ended");
  updates_under_way = static_cast<int>(updates.size());
}

// Return whether an update of a graph records the work of this thread's stream.
inline bool is_updating(c10::DeviceIndex device) {
  if (updates_under_way == 0) {
    return false;
  }
  std::lock_guard<std::mutex> guard(updates_mutex);
  return updates.count(current_key(device)) != 0;
}

inline void end_update(const c10::Stream& stream) {
  std::lock_guard<std::mutex> guard(updates_mutex);
  auto found = updates.find(key_of(stream));
  TORCH_CHECK(found != updates.end(), "graph_task_update_end without graph_task_update_begin");
  Update update = std::move(found->second);
  updates.erase(found);
  updates_under_way = static_cast<int>(updates.size());
  if (update.has_failed) {
    return;  // the call that did not match has raised
  }
  TORCH_CHECK(
      update.calls.size() == update.tasks.size(), "graph_task_update_end: the group has ", update.tasks.size(),
      " tasks, but the update has ", update.calls.size(), "; the graph is unchanged");
  check_there(update);
  for (size_t at = 0; at < update.tasks.size(); ++at) {
    update.graph->tasks[update.tasks[at]].run = std::move(update.calls[at]);
  }
}

inline void copy_all(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  Below below;
  for (size_t at = 0; at < from.size(); ++at) {
    if (from[at].defined() && to[at].defined() && from[at].numel() && from[at].data_ptr() != to[at].data_ptr()) {
      to[at].copy_(from[at]);
    }
  }
}

inline void add_call(
    Update& update, const c10::OperatorHandle& op, const c10::OperatorHandle& called, torch::jit::Stack* stack) {
  check_there(update);
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size(), begin = stack->size() - count;
  torch::jit::Stack kept(stack->begin() + static_cast<int64_t>(begin), stack->end()), made(kept);
  bool writes = false, has_made = false;
  for (size_t at = 0; at < count; ++at) {
    writes |= is_written(schema, at);
  }
  TORCH_CHECK(
      foretell(op, called, made, has_made), schema.name(), " cannot be updated: its results cannot be inferred");
  stack->resize(begin);
  stack->insert(stack->end(), made.begin(), made.end());
  if (!writes && !has_made) {
    return;  // a view
  }
  TORCH_CHECK(
      update.calls.size() < update.tasks.size(), "an update of a group with ", update.tasks.size(),
      " tasks got one more: ", schema.name());
  const Task& task = update.graph->tasks[update.tasks[update.calls.size()]];
  TORCH_CHECK(
      task.name == schema.name(), "an update got ", schema.name(), " instead of ", task.name);
  size_t at = 0;
  for (const auto& value : made) {
    for_each_tensor(value, [&](const at::Tensor& result) {
      const at::Tensor& target = task.targets.at(at++);
      TORCH_CHECK(
          result.sizes() == target.sizes() && result.dtype() == target.dtype(), "an update of ", schema.name(),
          " returns ", result.dtype(), result.sizes(), ", but the captured call returned ", target.dtype(), target.sizes());
    });
  }
  Prepared later(schema, &kept, 0, As::NOW, nullptr);  // it keeps its arguments, which may have no other owner
  std::vector<at::Tensor> fresh;  // read by later calls of the update
  for (const auto& value : made) {
    for_each_tensor(value, [&](const at::Tensor& result) { fresh.push_back(later.shown.show(result, true)); });
  }
  auto run = again(called, std::move(kept), task.targets, later.draws, schema.returns().size());
  update.calls.push_back([run = std::move(run), targets = task.targets, fresh = std::move(fresh)]() mutable {
    run();
    copy_all(targets, fresh);
    return true;
  });
}

// Replace a copy in the group; return false if the copy is not part of one.
inline bool update_copy(const at::Tensor& source, const at::Tensor& target) {
  std::lock_guard<std::mutex> guard(updates_mutex);
  auto found = updates.find(current_key(current_device));
  if (found == updates.end() || found->second.calls.size() == found->second.tasks.size()) {
    return false;
  }
  Update& update = found->second;
  check_there(update);
  const Task& task = update.graph->tasks[update.tasks[update.calls.size()]];
  if (task.name != "aten::copy_" || task.targets.empty() || !is_npu(target)) {
    return false;
  }
  update.has_failed |= task.targets[0].sizes() != target.sizes() || task.targets[0].dtype() != target.dtype();
  TORCH_CHECK(
      !update.has_failed, "an update of a copy has ", target.dtype(), target.sizes(), ", but the captured copy had ",
      task.targets[0].dtype(), task.targets[0].sizes());
  Shown from(task.name, true), to(task.name, true);
  const at::Tensor read = is_npu(source) ? from.show(source, false) : source.clone(), written = to.show(target, true);
  update.calls.push_back([read, written, kept = task.targets[0]] {
    copy_all({read, read}, {written, kept});
    return true;
  });
  return true;
}

inline bool update_call(const c10::OperatorHandle& op, const c10::OperatorHandle& called, torch::jit::Stack* stack) {
  std::lock_guard<std::mutex> guard(updates_mutex);
  auto found = updates.find(current_key(current_device));
  if (found == updates.end()) {
    return false;
  }
  try {
    add_call(found->second, op, called, stack);
  } catch (...) {
    found->second.has_failed = true;
    throw;
  }
  return true;
}

}  // namespace sim
