//! Hold: how long a request keeps its permit.

/// How long a request keeps its place in the slot.
///
/// Set per slot with [`SlotLimits::hold`](crate::SlotLimits::hold), or for one request by putting it into the
/// request's extensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Hold {
    /// Until the response body has ended or was dropped.
    #[default]
    Body,
    /// Until the response's headers are there. For bodies without an end, such as server-sent events.
    Headers,
}
