// Random numbers of a simulated device: a generator with a seed and an offset, as on other devices. Each draw seeds a
// generator of the backing device with both, so the offset can be set, and a replayed graph draws the same numbers as
// the program.
#pragma once

#include <ATen/Utils.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>

#include "memory.h"

namespace sim {

struct RandomState : c10::intrusive_ptr_target {
  uint64_t seed = c10::default_rng_seed_val;
  uint64_t offset = 0;
};

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex device)
      : GeneratorImpl(c10::Device(NPU, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        state_(c10::make_intrusive<RandomState>()) {}

  void set_current_seed(uint64_t seed) override {
    state_->seed = seed;
    state_->offset = 0;
  }
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset % 4 == 0, "offset must be a multiple of 4, got ", offset);
    state_->offset = offset;
  }
  uint64_t get_offset() const override { return state_->offset; }
  uint64_t current_seed() const override { return state_->seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state_->seed;
  }
  void set_state(const c10::TensorImpl& given) override {
    at::detail::check_rng_state(given);
    TORCH_CHECK(given.numel() == 16, "the state of an npu generator has 16 bytes, got ", given.numel());
    const auto* numbers = static_cast<const uint64_t*>(given.data());
    state_->seed = numbers[0];
    state_->offset = numbers[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({16}, at::TensorOptions().dtype(at::kByte));
    auto* numbers = static_cast<uint64_t*>(state.mutable_data_ptr());
    numbers[0] = state_->seed;
    numbers[1] = state_->offset;
    return state.getIntrusivePtr();
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override {
    auto* given = dynamic_cast<Generator*>(other.get());
    TORCH_CHECK(given != nullptr, "expected the state of an npu generator");
    state_ = given->state_;
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    auto same = c10::make_intrusive<Generator>(device().index());
    same->state_ = state_;
    return same;
  }

  // Return a generator of the backing device for one draw.
  at::Generator draw() {
    uint64_t mixed = state_->seed + 0x9e3779b97f4a7c15ull * (state_->offset + 1);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
    state_->offset += 4;
    auto made = at::globalContext().defaultGenerator(backing_device()).clone();
    made.set_current_seed(mixed ^ (mixed >> 31));
    return made;
  }

 private:
  Generator* clone_impl() const override {
    auto* same = new Generator(device().index());
    same->state_->seed = state_->seed;
    same->state_->offset = state_->offset;
    return same;
  }

  c10::intrusive_ptr<RandomState> state_;
};

inline at::Generator& default_generator(c10::DeviceIndex device) {
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> made;
    for (int index = 0; index < MAX_DEVICES; ++index) {
      made.push_back(at::make_generator<Generator>(index));
    }
    return made;
  }();
  return all.at(device < 0 ? current_device : device);
}

}  // namespace sim
