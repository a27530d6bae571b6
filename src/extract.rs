//! Key extractors: which slot a request belongs to.
//!
//! The default reads nothing that a stranger can set beyond the request's own target: never `Forwarded`, never
//! `X-Forwarded-*`.

use http::{Request, header};

use crate::key::{Host, KeyFuture, KeyRef, SlotKey};

/// Says which slot a request goes through.
///
/// Closures from a request to a [`SlotKey`] are extractors:
///
/// ```
/// # use tower_slot::{SlotConfig, SlotKey, SlotLayer};
/// let per_method = SlotLayer::new(SlotConfig::default())
///     .key_extractor(|request: &http::Request<()>| SlotKey::from(request.method().as_str()));
/// ```
pub trait KeyExtractor<B> {
    /// Returns the key of `request`, or what will tell it.
    fn extract<'a>(&self, request: &'a Request<B>) -> Extracted<'a>;
}

/// What a [`KeyExtractor`] returns.
#[derive(Debug)]
#[non_exhaustive]
pub enum Extracted<'a> {
    /// The key.
    Key(KeyRef<'a>),
    /// The key takes time, for example to resolve a name. The request gets its place in the queue when it is known.
    Later(KeyFuture),
}

/// The default: the [`SlotKey`] in the request's extensions, else the URI's host, else the `Host` header.
///
/// A request with none of them goes through the slot named `""`: it is limited like any other. Two `Host`
/// headers, or one that RFC 9110 does not allow, count as none. See [`SlotKey::host`] for what a host becomes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExtensionOrHost;

// === impl Extracted ===

impl<'a> From<KeyRef<'a>> for Extracted<'a> {
    fn from(key: KeyRef<'a>) -> Self {
        Self::Key(key)
    }
}

impl From<SlotKey> for Extracted<'_> {
    fn from(key: SlotKey) -> Self {
        Self::Key(key.into())
    }
}

// === impl ExtensionOrHost ===

impl<B> KeyExtractor<B> for ExtensionOrHost {
    #[inline]
    fn extract<'a>(&self, request: &'a Request<B>) -> Extracted<'a> {
        if let Some(key) = request.extensions().get::<SlotKey>() {
            return Extracted::Key(key.into());
        }
        if let Some(host) = host_of_uri(request) {
            return Extracted::Key(host.into());
        }
        Extracted::Key(host_header(request).map_or(KeyRef::name(""), KeyRef::from))
    }
}

impl<B, F> KeyExtractor<B> for F
where
    F: Fn(&Request<B>) -> SlotKey,
{
    fn extract<'a>(&self, request: &'a Request<B>) -> Extracted<'a> {
        Extracted::from(self(request))
    }
}

#[cfg(any(feature = "domain", feature = "resolve"))]
pub(crate) fn host<B>(request: &Request<B>) -> Option<Host<'_>> {
    host_of_uri(request).or_else(|| host_header(request))
}

#[inline]
fn host_of_uri<B>(request: &Request<B>) -> Option<Host<'_>> {
    Host::in_authority(request.uri().authority()?.as_str())
}

#[inline(never)]
fn host_header<B>(request: &Request<B>) -> Option<Host<'_>> {
    let mut values = request.headers().get_all(header::HOST).iter();
    let value = values.next()?;
    values.next().is_none().then(|| Host::in_header(value.as_bytes()))?
}
