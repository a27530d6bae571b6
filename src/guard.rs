//! Code that is not ours, run while a permit is held: should it panic, the permit goes as it unwinds.
//!
//! What is held stays where it is, so that the usual way moves nothing.

use crate::slot::Outcome;

/// Something that may keep a permit.
pub(crate) trait End {
    /// Gives the permit back, if there is one.
    fn end(&mut self, outcome: Outcome);
}

/// Runs `f`; if it panics, what is `held` is given back as a failure.
#[inline]
pub(crate) fn guard<H: End, T>(held: &mut H, f: impl FnOnce() -> T) -> T {
    let unwinding = Unwinding(held);
    let value = f();
    std::mem::forget(unwinding);
    value
}

struct Unwinding<'a, H: End>(&'a mut H);

impl<H: End> Drop for Unwinding<'_, H> {
    #[cold]
    fn drop(&mut self) {
        self.0.end(Outcome::Failed);
    }
}
