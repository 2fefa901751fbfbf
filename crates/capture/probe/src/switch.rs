use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// What a [`Switch`] turns off.
pub trait Records: Sync + 'static {
    /// Takes note of a fault of ours.
    fn count_fault(&self);
}

/// The one recorder of a library in its process: made once, off for good after its first
/// panic, and off in a forked child, which is another process.
#[derive(Debug)]
pub struct Switch<R> {
    /// Null while nothing is recorded. What it points to is never freed: a thread may be in
    /// the middle of a call.
    active: AtomicPtr<R>,
    started: OnceLock<()>,
}

impl<R: Records> Switch<R> {
    /// Off, until it is started.
    pub const fn new() -> Self {
        Self {
            active: AtomicPtr::new(ptr::null_mut()),
            started: OnceLock::new(),
        }
    }

    /// Makes the recorder on the first call, in whatever thread; `in_child` runs in forked
    /// children and must call [`Self::off`]. The library must never be unloaded.
    #[inline]
    pub fn start(&self, make: impl FnOnce() -> Option<R>, in_child: unsafe extern "C" fn()) {
        if self.started.get().is_some() {
            return;
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.started.get_or_init(|| {
                // Before the recorder is there: a child forked in between must not go on with it.
                // SAFETY: the handler only turns a switch off, and stays where it is.
                unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
                if let Some(recorder) = make() {
                    self.active.store(Box::leak(Box::new(recorder)), Release);
                }
            });
        }));
        if outcome.is_err() {
            self.off();
        }
    }

    /// Records nothing any more.
    pub fn off(&self) {
        self.active.store(ptr::null_mut(), Release);
    }

    /// Whether anything is recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        !self.active.load(Relaxed).is_null()
    }

    /// Runs `body` with the recorder, if there is one. A panic is counted, switches it off
    /// for good and goes no further.
    #[inline]
    pub fn with<T>(&self, body: impl FnOnce(&R) -> T) -> Option<T> {
        let recorder = self.active.load(Acquire);
        if recorder.is_null() {
            return None;
        }
        // SAFETY: recorders are leaked by `start` and never freed.
        let recorder = unsafe { &*recorder };
        let result = catch_unwind(AssertUnwindSafe(|| body(recorder)));
        if result.is_err() {
            self.off();
            recorder.count_fault();
        }
        result.ok()
    }
}

impl<R: Records> Default for Switch<R> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[derive(Default)]
    struct Faults(AtomicU32);

    impl Records for &'static Faults {
        fn count_fault(&self) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    unsafe extern "C" fn nothing() {}

    #[test]
    fn a_panic_is_counted_and_switches_off_for_good() {
        let faults: &'static Faults = Box::leak(Box::default());
        let switch = Switch::new();
        assert_eq!(switch.with(|_: &&Faults| ()), None, "not started");
        switch.start(|| Some(faults), nothing);
        assert_eq!(switch.with(|_| 7), Some(7));
        assert_eq!(switch.with(|_| -> u8 { panic!("a fault") }), None);
        switch.start(|| Some(faults), nothing);
        assert_eq!(switch.with(|_| unreachable!("it is off")), None::<u8>);
        assert_eq!(faults.0.load(Relaxed), 1);
    }
}
