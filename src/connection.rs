//! The moment in which the client has a connection: hyper-util's client tells it through the request's extensions.
//!
//! It is looked at after each poll of the client's future: what wakes that future is the connection itself.

use http::Request;

use crate::slot::SlotPermit;
use crate::timings::SlotTimings;

/// Whether the client has a connection for a request: nothing before it is asked to tell, and once it has told.
#[derive(Debug, Default)]
pub(crate) struct Connecting {
    #[cfg(feature = "connection")]
    capture: Option<hyper_util::client::legacy::connect::CaptureConnection>,
}

// === impl Connecting ===

// Without the feature nobody can ask, and all of it is empty.
#[cfg_attr(
    not(feature = "connection"),
    allow(unused_variables, clippy::unused_self, clippy::needless_pass_by_ref_mut)
)]
impl Connecting {
    /// Has the client tell, if somebody wants to know: the permit waits for the connection from its start on.
    #[cold]
    pub(crate) fn ask<B>(&mut self, request: &mut Request<B>, permit: &mut SlotPermit, timed: bool) {
        #[cfg(feature = "connection")]
        if permit.awaits_connection(timed) {
            self.capture = Some(hyper_util::client::legacy::connect::capture_connection(request));
        }
    }

    /// After each look of the client at its work.
    #[inline]
    pub(crate) fn look(&mut self, permit: Option<&mut SlotPermit>, timings: Option<&SlotTimings>) {
        #[cfg(feature = "connection")]
        if let (Some(capture), Some(permit)) = (&self.capture, permit) {
            if capture.connection_metadata().is_some() {
                let took = permit.connected();
                self.capture = None;
                timings.inspect(|timings| timings.connected(took));
            }
        }
    }

    /// The headers are here, whether or not it has told.
    #[inline]
    pub(crate) fn end(&mut self, permit: Option<&mut SlotPermit>) {
        #[cfg(feature = "connection")]
        if let (Some(_), Some(permit)) = (self.capture.take(), permit) {
            permit.never_connected();
        }
    }
}
