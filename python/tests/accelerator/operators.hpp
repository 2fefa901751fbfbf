// Memory and operators of the accelerator: operators are launched, and run on the CPU's kernels.
#pragma once

#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include "streams.hpp"

namespace accelerator {

constexpr auto KEY = c10::DispatchKey::PrivateUse1;
const c10::Device SIM(c10::DeviceType::PrivateUse1, 0);

// Device memory is host memory. Whatever still runs on it holds it.
using Memory = std::shared_ptr<void>;

inline void release(void* context) {
  delete static_cast<Memory*>(context);
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, SIM};
    void* place = nullptr;
    TORCH_CHECK(posix_memalign(&place, 64, bytes) == 0, "sim: out of memory");
    return {place, new Memory(place, std::free), &release, SIM};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    streams().synchronize();
    std::memcpy(to, from, bytes);
  }
};

inline Allocator& allocator() {
  static auto& one = *new Allocator;
  return one;
}

// Pinned memory: the device reads and writes it while the host goes on.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto* place = std::malloc(std::max<size_t>(bytes, 1));
    TORCH_CHECK(place, "sim: out of memory");
    std::lock_guard lock(mutex_);
    pinned_[place] = bytes;
    return {place, new Memory(place, [this](void* place) { free(place); }), &release, at::kCPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  bool holds(const void* place) {
    std::lock_guard lock(mutex_);
    auto after = pinned_.upper_bound(place);
    if (after == pinned_.begin()) return false;
    const auto [begin, bytes] = *std::prev(after);
    return place < static_cast<const char*>(begin) + bytes;
  }

 private:
  void free(void* place) {
    std::lock_guard lock(mutex_);
    pinned_.erase(place);
    std::free(place);
  }

  std::mutex mutex_;
  std::map<const void*, size_t> pinned_;
};

inline PinnedAllocator& pinned() {
  static auto& one = *new PinnedAllocator;
  return one;
}

inline Memory memory_of(const c10::Storage& storage) {
  if (!storage.data()) return nullptr;
  auto* memory = storage.data_ptr().cast_context<Memory>(&release);
  TORCH_CHECK(memory, "sim: this memory is not of this device");
  return *memory;
}

// Gives a storage so many bytes; what it held is copied when the stream gets there.
inline void resize_storage(const c10::Storage& storage, size_t bytes) {
  const auto held = memory_of(storage);
  auto fresh = allocator().allocate(bytes);
  if (const auto kept = std::min(bytes, storage.nbytes())) {
    const auto wanted = *static_cast<Memory*>(fresh.get_context());
    current().launch(intern("resize"), [held, wanted, kept] {
      std::memcpy(wanted.get(), held.get(), kept);
    });
  }
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

// Random numbers of the device: drawn in the order of its stream.
inline at::Generator& generator() {
  static auto& one = *new at::Generator(at::detail::createCPUGenerator());
  return one;
}

// A tensor of the CPU in the same memory, which it holds.
inline at::Tensor same_memory(const at::Tensor& tensor) {
  const auto memory = memory_of(tensor.storage());
  auto* place = static_cast<char*>(memory.get()) + tensor.storage_offset() * tensor.itemsize();
  return at::from_blob(
      memory ? place : nullptr,
      tensor.sizes(),
      tensor.strides(),
      [memory](void*) {},
      tensor.options().device(at::kCPU));
}

// What a stream is given of a tensor. Never one that Python knows of: the last reference may end
// on the stream.
inline at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (!tensor.is_privateuseone()) {
    // The host may change what it passed before it is used.
    auto copy = tensor.clone();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return copy;
  }
  return same_memory(tensor);
}

// A tensor of that shape and no memory; what the host has stays.
inline at::Tensor on_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || (!tensor.is_privateuseone() && tensor.dim() == 0)) return tensor;
  return at::empty_strided(
      tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

// The value with each of its tensors turned into another.
template <class Turn>
c10::IValue turned(const c10::IValue& value, Turn&& turn) {
  if (value.isTensor()) return turn(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(turn(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::make_optional(turn(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

// An operator and what it was called with.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), arguments_(torch::jit::pop(stack, op.schema().arguments().size())) {
    for (const auto& result : op.schema().returns()) results_.push_back(written_by(result));
  }

  const std::string* name() const { return &op_.schema().name(); }

  // Only the data tells what comes out, or it is for the host: it has to wait.
  bool waits() const {
    if (op_.hasTag(at::Tag::dynamic_output_shape) || op_.hasTag(at::Tag::data_dependent_output)) {
      return true;
    }
    for (const auto& result : op_.schema().returns()) {
      const auto kind = result.type()->kind();
      const bool list = kind == c10::TypeKind::ListType &&
          result.type()->castRaw<c10::ListType>()->getElementType()->kind() ==
              c10::TypeKind::TensorType;
      if (kind != c10::TypeKind::TensorType && !list) return true;
    }
    return false;
  }

  // Allocates what comes out. False if that cannot be known beforehand.
  bool allocate(torch::jit::Stack& outputs) {
    if (!shapes_wanted()) {
      for (auto argument : results_) outputs.push_back(arguments_[argument]);
      return true;
    }
    torch::jit::Stack metas = converted(at::kMeta, on_meta), shapes = metas;
    try {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      op_.callBoxed(&shapes);
    } catch (const c10::NotImplementedError&) {
      return false;
    }
    for (size_t at = 0; at < results_.size(); ++at) {
      if (results_[at] < 0) {
        outputs.push_back(turned(shapes[at], like));
      } else {
        outputs.push_back(arguments_[results_[at]]);
        grow(outputs.back(), shapes[at]);
      }
    }
    return true;
  }

  // What a stream is to run: the CPU's kernel, into the outputs.
  std::function<void()> kernel(const torch::jit::Stack& outputs) const {
    auto inputs = on_cpu_all();
    torch::jit::Stack fresh;
    for (size_t at = 0; at < results_.size(); ++at) {
      fresh.push_back(results_[at] < 0 ? turned(outputs[at], on_cpu) : c10::IValue());
    }
    return [op = op_, inputs = std::move(inputs), fresh = std::move(fresh)]() mutable {
      op.callBoxed(&inputs);
      for (size_t at = 0; at < fresh.size(); ++at) fill(fresh[at], inputs[at]);
      inputs.clear();
    };
  }

  // Runs it here and now.
  torch::jit::Stack result() const {
    auto stack = on_cpu_all();
    {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      op_.callBoxed(&stack);
    }
    for (size_t at = 0; at < results_.size(); ++at) {
      if (results_[at] >= 0) {
        stack[at] = arguments_[results_[at]];
      } else {
        const auto found = stack[at];
        stack[at] = turned(found, like);
        fill(turned(stack[at], on_cpu), found);
      }
    }
    return stack;
  }

 private:
  // Which argument is written and returned; -1 if the result is new.
  int64_t written_by(const c10::Argument& result) const {
    if (!result.alias_info()) return -1;
    TORCH_CHECK_NOT_IMPLEMENTED(
        result.alias_info()->isWrite(), "sim: no view like ", op_.schema().name());
    const auto& arguments = op_.schema().arguments();
    for (size_t at = 0; at < arguments.size(); ++at) {
      const auto* alias = arguments[at].alias_info();
      if (alias && alias->beforeSets() == result.alias_info()->beforeSets()) return at;
    }
    return -1;
  }

  // Whether something is to be allocated, or has yet to get its size.
  bool shapes_wanted() const {
    for (auto argument : results_) {
      if (argument < 0) return true;
      const auto& value = arguments_[argument];
      if (value.isTensor() && value.toTensor().numel() == 0) return true;
    }
    return false;
  }

  static at::Tensor like(const at::Tensor& shape) {
    if (!shape.defined()) return shape;
    return at::empty_strided(shape.sizes(), shape.strides(), shape.options().device(SIM));
  }

  static void grow(const c10::IValue& output, const c10::IValue& shape) {
    if (!output.isTensor() || output.toTensor().sizes() == shape.toTensor().sizes()) return;
    output.toTensor().resize_(shape.toTensor().sizes());
  }

  static void fill(const c10::IValue& output, const c10::IValue& found) {
    if (output.isTensor() && output.toTensor().defined()) {
      output.toTensor().copy_(found.toTensor());
    } else if (output.isTensorList()) {
      const auto outputs = output.toTensorVector(), all = found.toTensorVector();
      for (size_t at = 0; at < all.size(); ++at) outputs[at].copy_(all[at]);
    }
  }

  torch::jit::Stack on_cpu_all() const {
    return converted(at::kCPU, on_cpu);
  }

  // The arguments for another device. What is passed twice stays one tensor.
  template <class Turn>
  torch::jit::Stack converted(c10::Device device, Turn turn) const {
    std::vector<std::pair<c10::TensorImpl*, at::Tensor>> known;
    const auto once = [&](const at::Tensor& tensor) {
      for (const auto& [from, to] : known) {
        if (from == tensor.unsafeGetTensorImpl()) return to;
      }
      known.emplace_back(tensor.unsafeGetTensorImpl(), turn(tensor));
      return known.back().second;
    };
    torch::jit::Stack stack;
    for (size_t at = 0; at < arguments_.size(); ++at) {
      const auto& value = arguments_[at];
      if (value.isDevice()) {
        stack.emplace_back(device);
      } else if (draws(at)) {
        stack.emplace_back(generator());
      } else {
        stack.push_back(turned(value, once));
      }
    }
    return stack;
  }

  bool draws(size_t at) const {
    const auto& type = op_.schema().arguments()[at].type();
    return type->isSubtypeOf(*c10::OptionalType::create(c10::GeneratorType::get()));
  }

  c10::OperatorHandle op_;
  torch::jit::Stack arguments_;
  std::vector<int64_t> results_;
};

// Every operator that is not the device's own: launched on the current stream, and waited for
// only where the host cannot go on without what comes out.
inline void launch(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call(op, *stack);
  torch::jit::Stack outputs;
  if (!call.waits() && call.allocate(outputs)) {
    current().launch(call.name(), call.kernel(outputs));
  } else {
    current().synchronize();
    outputs = call.result();
  }
  for (auto& output : outputs) stack->push_back(std::move(output));
}

inline at::Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      size, &allocator(), c10::DispatchKeySet(KEY), c10::dtype_or_default(dtype), format);
}

inline at::Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &allocator(), c10::DispatchKeySet(KEY), c10::dtype_or_default(dtype));
}

inline const at::Tensor& resize_(
    const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_sizes_contiguous(size);
  if (format) tensor->empty_tensor_restride(*format);
  const size_t bytes = (tensor->storage_offset() + tensor->numel()) * self.itemsize();
  if (bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  return self;
}

// The host waits for what it reads, unless it says that it will wait later.
inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const auto& host = to.is_privateuseone() ? from : to;
  const bool pinned_host = !host.is_privateuseone() && pinned().holds(host.const_data_ptr());
  if (to.is_privateuseone() || (non_blocking && pinned_host)) {
    const auto source = non_blocking && pinned_host ? same_memory(from) : on_cpu(from);
    current().launch(intern("copy"), [source, to = same_memory(to)]() mutable { to.copy_(source); });
  } else {
    current().synchronize();
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    to.copy_(same_memory(from));
  }
  return to;
}

inline void record_stream(at::Tensor&, at::Stream) {
  // Memory is held by what runs on it, on whichever stream.
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("set_.source_Storage", TORCH_FN(
      static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_)));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("record_stream", TORCH_FN(record_stream));
  // Of these PyTorch has ways for any device that are not the CPU's.
  for (const char* name : {"mse_loss", "smooth_l1_loss", "native_layer_norm", "native_group_norm"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&launch>());
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&launch>());
}

} // namespace accelerator
