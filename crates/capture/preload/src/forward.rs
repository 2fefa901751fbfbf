//! Which function a call would have gone to without us.
//!
//! The loader looks through the program and all that is loaded globally, and then through the
//! caller's own library and what that needs. PyTorch's libraries are loaded locally, so the
//! next in the global order is often none; NCCL may be a library beside the caller's or part
//! of it; and one process may hold two.

use std::ffi::{CStr, c_void};
use std::io::{Write, stderr};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Places a function is called from that are remembered; others are looked up each time.
const SITES: usize = 64;
/// Remembered places looked at for one call.
const PROBES: usize = 8;
/// In the place of a caller that is just being written.
const BUSY: usize = 1;
/// What NCCL is called where the caller's library does not say.
const USUAL: &CStr = c"libnccl.so.2";

/// A function of the API, and what calls of it went to.
pub(crate) struct ForwardedFunction {
    name: &'static CStr,
    sites: [Site; SITES],
}

/// Where a call returns to, and the function it was for. Written once.
struct Site {
    caller: AtomicUsize,
    real: AtomicUsize,
}

impl Site {
    const fn new() -> Self {
        Self {
            caller: AtomicUsize::new(0),
            real: AtomicUsize::new(0),
        }
    }
}

impl ForwardedFunction {
    pub(crate) const fn named(name: &'static CStr) -> Self {
        Self {
            name,
            sites: [const { Site::new() }; SITES],
        }
    }

    /// The function behind ours for a call that returns to `caller`. If there is none the
    /// process ends, as it would have without us.
    #[inline]
    pub(crate) fn of(&self, caller: usize) -> *const c_void {
        // Calls are some bytes long, so neighbours differ above the lowest bits.
        for probe in 0..PROBES {
            let Some(site) = self.sites.get(((caller >> 3) + probe) % SITES) else {
                break;
            };
            match site.caller.load(Acquire) {
                found if found == caller => {
                    return ptr::with_exposed_provenance(site.real.load(Relaxed));
                }
                // Places are taken in this order and never given back: a free one ends the search.
                0 => break,
                _ => {}
            }
        }
        self.look_up(caller)
    }

    #[cold]
    fn look_up(&self, caller: usize) -> *const c_void {
        let real = find(self.name, caller);
        if real.is_null() {
            let name = self.name.to_string_lossy();
            drop(writeln!(
                stderr(),
                "symbol lookup error: undefined symbol: {name}"
            ));
            // SAFETY: the loader's own status for a symbol that is not there.
            unsafe { libc::_exit(127) };
        }
        for probe in 0..PROBES {
            let Some(site) = self.sites.get(((caller >> 3) + probe) % SITES) else {
                break;
            };
            if site
                .caller
                .compare_exchange(0, BUSY, Relaxed, Relaxed)
                .is_ok()
            {
                site.real.store(real.expose_provenance(), Relaxed);
                site.caller.store(caller, Release);
                break;
            }
        }
        real
    }
}

/// The function of that name that a caller means, pinned; null if there is none.
fn find(name: &CStr, caller: usize) -> *const c_void {
    // SAFETY: the name ends in zero, handles are the loader's, and what is found is only
    // compared here.
    unsafe {
        let mut real = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        // The loader's order: what is loaded globally stands before the caller's own library.
        for library in [library_of(caller), USUAL.as_ptr()] {
            if is_other(real) || library.is_null() {
                break;
            }
            // Never loads one: without us the caller would not have got that library.
            let handle = libc::dlopen(library, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if !handle.is_null() {
                real = libc::dlsym(handle, name.as_ptr());
                // `RTLD_NOLOAD` counts a reference, too: the job's library must not stay for it.
                libc::dlclose(handle);
            }
        }
        if !is_other(real) {
            return ptr::null();
        }
        // It is remembered, so it must not be unloaded.
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        let library = library_of(real.addr());
        if !library.is_null() {
            libc::dlopen(library, flags);
        }
        real
    }
}

/// Whether a function is there, and not one of ours.
fn is_other(function: *const c_void) -> bool {
    let ours = base_of((find as *const ()).addr());
    !function.is_null() && base_of(function.addr()) != ours
}

/// The path of the library an address is in, null if it is in none.
fn library_of(address: usize) -> *const libc::c_char {
    info_of(address).map_or(ptr::null(), |info| info.dli_fname)
}

fn base_of(address: usize) -> Option<usize> {
    info_of(address).map(|info| info.dli_fbase.addr())
}

fn info_of(address: usize) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the call takes any address and fills `info` if it succeeds.
    unsafe {
        let found = libc::dladdr(ptr::without_provenance(address), info.as_mut_ptr());
        (found != 0).then(|| info.assume_init())
    }
}
