// An asynchronous accelerator on the CPU, for tests: what PyTorch asks of a device.

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include "collectives.hpp"
#include "operators.hpp"
#include "streams.hpp"

namespace accelerator {

// An event: where it was last recorded.
struct Event {
  MarkPtr mark;
};

inline Event* event_of(void* event) {
  return static_cast<Event*>(event);
}

inline void violate_if_capturing() {
  if (device().capturing) ++device().violations;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return SIM.type(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Device exchangeDevice(c10::Device) const override { return SIM; }
  c10::Device getDevice() const override { return SIM; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  void synchronizeDevice(const c10::DeviceIndex) const override { streams().synchronize(); }

  c10::Stream stream(int64_t id) const {
    return c10::Stream(c10::Stream::UNSAFE, SIM, id);
  }
  c10::Stream getStream(c10::Device) const override { return stream(current_id()); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    // Each callback of a future asks for one: few, and used again.
    static const std::array<int64_t, 4> pool{
        streams().create(true).id(), streams().create(true).id(),
        streams().create(true).id(), streams().create(true).id()};
    static std::atomic<size_t> turn{0};
    return stream(pool[turn++ % pool.size()]);
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    return stream(streams().create(true).id());
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(current_id(), next.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    return streams().get(stream.id()).idle();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    streams().get(stream.id()).synchronize();
  }
  bool isStreamCapturing(const c10::Stream&) const override { return device().capturing; }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    // PyTorch's own events order streams and take no time: a graph has them as its edges.
    if (flag == c10::EventFlag::BACKEND_DEFAULT) violate_if_capturing();
    if (!*event) *event = new Event;
    event_of(*event)->mark = streams().get(stream.id()).record();
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) streams().get(stream.id()).wait(event_of(event)->mark);
  }
  bool queryEvent(void* event) const override {
    violate_if_capturing();
    TORCH_CHECK(!device().queries_fail, "sim: queries of events fail, as they were told to");
    return !event || event_of(event)->mark->reached();
  }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    Released released;
    event_of(event)->mark->wait();
    device().check();
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    TORCH_CHECK(
        from && to && event_of(from)->mark->reached() && event_of(to)->mark->reached(),
        "sim: both events must be recorded and completed");
    return (event_of(to)->mark->wait() - event_of(from)->mark->wait()) * 1e-6;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete event_of(event);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* place) const override { return pinned().holds(place); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
  at::Device getDeviceFromPtr(void*) const override { return SIM; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

} // namespace accelerator

namespace py = pybind11;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace accelerator;
  using Free = py::call_guard<py::gil_scoped_release>;

  c10::SetAllocator(c10::DeviceType::PrivateUse1, &allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);

  m.def("spend", &spend, py::arg("label"), py::arg("seconds"), Free());
  m.def("stop", &stop, Free());
  m.def("stop_collectives", [] { device().collectives_stop = true; });
  m.def("stopped", [] { return device().stopped.load(); });
  m.def("queue", [](size_t limit) { device().queue_limit = limit; });
  m.def("fail_queries", [](bool fail) { device().queries_fail = fail; });
  m.def("capture_begin", [] {
    device().violations = 0;
    device().capturing = true;
  });
  m.def("capture_end", [] {
    device().capturing = false;
    return device().violations.load();
  });
  m.def("capturing", [] { return device().capturing.load(); });
  m.def("synchronize", [] { streams().synchronize(); }, Free());
  m.def("end", [] { streams().end(); }, Free());
  m.def("log", [] {
    std::vector<std::tuple<int64_t, std::string, int64_t, int64_t>> all;
    std::lock_guard lock(device().mutex);
    for (const auto& [stream, label, begin, end] : device().log) {
      all.emplace_back(stream, *label, begin, end);
    }
    return all;
  }, Free());
  // Numbers are drawn where the stream is, not where the host is.
  m.def("seed", [](uint64_t seed) {
    current().launch(intern("seed"), [seed] { generator().set_current_seed(seed); });
  }, Free());
  m.def("generator_state", [] {
    current().synchronize();
    return generator().get_state();
  }, Free());
  m.def("set_generator_state", [](const at::Tensor& state) {
    current().synchronize();
    generator().set_state(state);
  }, Free());
  m.def("collectives", [](const c10::intrusive_ptr<c10d::Backend>& gloo) {
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<Collectives>(gloo));
  });
}
