//! Panics of code that is not ours: of several things to do, the others are done all the same.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The first panic of several.
#[derive(Default)]
#[must_use]
pub(super) struct Panics(Option<Box<dyn Any + Send>>);

// === impl Panics ===

impl Panics {
    /// Runs `f` and keeps its panic for later.
    pub(super) fn catch(&mut self, f: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(f)) {
            self.0.get_or_insert(panic);
        }
    }

    pub(super) fn any(&self) -> bool {
        self.0.is_some()
    }

    /// Lets the first panic go on, unless one is on its way already.
    pub(super) fn resume(self) {
        match self.0 {
            Some(panic) if !std::thread::panicking() => resume_unwind(panic),
            _ => {}
        }
    }
}

/// Calls `f` with each of `items`, whatever panics.
pub(super) fn each<T>(items: impl IntoIterator<Item = T>, mut f: impl FnMut(T)) {
    let mut panics = Panics::default();
    for item in items {
        panics.catch(|| f(item));
    }
    panics.resume();
}
