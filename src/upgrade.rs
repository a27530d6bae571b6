//! Upgrades: a permit that can be moved to whoever uses the upgraded connection.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Method, Request, StatusCode, header};
use tokio::time::Instant;

use crate::slot::SlotPermit;

/// The permit of a request that asks for an upgrade (`CONNECT`, or an `Upgrade` header).
///
/// A copy is in the request's extensions before the inner service is called, and in the response's if that is
/// 101, or 2xx to `CONNECT`. Such a response's body holds no permit: this handle does, until the permit is
/// [taken](Self::take) or the last copy is gone. For any other response the body holds it, as always.
///
/// Of two layers around one another the outer one's handle takes the inner one's place in the response: take the inner
/// one from the request's extensions.
///
/// ```
/// # async fn upgraded(_: http::Request<()>) {}
/// # fn handler(mut request: http::Request<()>) {
/// // In a handler: the permit lives as long as the task that uses the connection.
/// let permit = request.extensions_mut().remove::<tower_slot::UpgradePermit>();
/// let task = async move {
///     let _permit = permit.and_then(|permit| permit.take());
///     upgraded(request).await;
/// };
/// # }
/// ```
#[derive(Clone)]
pub struct UpgradePermit(Arc<Shared>);

struct Shared {
    start: Instant,
    /// `None` once it was taken, or if there was nothing to take in the end.
    permit: Mutex<Option<SlotPermit>>,
}

// === impl UpgradePermit ===

impl UpgradePermit {
    pub(crate) fn new(permit: SlotPermit) -> Self {
        let start = permit.phase_began();
        Self(Arc::new(Shared { start, permit: Mutex::new(Some(permit)) }))
    }

    /// Takes the permit, once: later calls, on this copy or another, give `None`. So does a call after the
    /// request has failed or was dropped, or after a response that is no upgrade.
    #[must_use = "a permit is given back when it is dropped"]
    pub fn take(&self) -> Option<SlotPermit> {
        self.take_back().map(SlotPermit::by_hand)
    }

    /// Takes it as it is.
    pub(crate) fn take_back(&self) -> Option<SlotPermit> {
        self.lock().take()
    }

    /// The upgrade was agreed on: from now on the permit is the handle's, unless it was taken before, and its end
    /// is a good one.
    pub(crate) fn agree(&self) {
        // It never leaves the lock: whoever takes it in this moment has to find it.
        let mut permit = self.lock();
        *permit = permit.take().map(SlotPermit::by_hand);
    }

    /// How long it has been since the start, in nanoseconds, whoever has the permit.
    pub(crate) fn since_start(&self) -> u64 {
        u64::try_from(self.0.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Option<SlotPermit>> {
        self.0.permit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for UpgradePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpgradePermit").finish_non_exhaustive()
    }
}

/// Whether a request asks for an upgrade.
pub(crate) fn is_asked<B>(request: &Request<B>) -> bool {
    *request.method() == Method::CONNECT || request.headers().contains_key(header::UPGRADE)
}

/// Whether a response with that status, to such a request, agrees to it.
pub(crate) fn is_agreed(status: StatusCode, to_connect: bool) -> bool {
    status == StatusCode::SWITCHING_PROTOCOLS || (to_connect && status.is_success())
}
