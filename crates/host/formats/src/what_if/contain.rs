use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs code of others that may panic on damaged input; `None` if it did. Nothing is printed
/// then.
pub(super) fn contain<T>(work: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !CONTAINED.get() {
                before(panic);
            }
        }));
    });
    CONTAINED.set(true);
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    CONTAINED.set(false);
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_inside_is_nothing_and_one_outside_is_one() {
        assert_eq!(contain(|| 7), Some(7));
        assert_eq!(contain(|| panic!("inside")), None::<()>);
        assert!(catch_unwind(|| panic!("outside")).is_err());
    }
}
