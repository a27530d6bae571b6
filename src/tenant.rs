//! Tenants on a server: slots per header, per peer address, per forwarded address.
//!
//! None of them trusts a client by default. A header that a client may set freely lets it choose its own slot:
//! use [`HeaderKey`] behind something that checks it, and [`ForwardedFor`] only with as many proxies of your own in
//! front as you say. What is missing, unreadable or over 253 bytes shares the slot named `""`; and
//! [`max_slots`](crate::SlotConfigBuilder::max_slots) bounds how many slots strangers can make:
//! [`SlotConfig::server`](crate::SlotConfig::server) begins with 10,000.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{HeaderName, Request};

use crate::extract::{Extracted, KeyExtractor};
use crate::key::{KeyRef, LONGEST_HOST, SlotKey};

/// A slot per value of a header. The value is the slot's name and shows in statistics and errors: take one that holds no
/// secret.
///
/// ```
/// # use tower_slot::{HeaderKey, SlotConfig, SlotLayer};
/// let layer = SlotLayer::new(SlotConfig::default())
///     .key_extractor(HeaderKey::new(http::HeaderName::from_static("x-tenant")));
/// ```
#[derive(Clone, Debug)]
pub struct HeaderKey(HeaderName);

/// A slot per address of the peer, found in the request's extensions as a `T`. IPv6 addresses are cut to a prefix,
/// 64 bits unless said otherwise: one customer has all the rest.
///
/// ```
/// # use std::net::SocketAddr;
/// # use tower_slot::{PeerKey, SlotConfig, SlotLayer};
/// # #[derive(Clone)] struct ConnectInfo(SocketAddr);
/// // With axum: `axum::extract::ConnectInfo<SocketAddr>`.
/// let layer = SlotLayer::new(SlotConfig::default())
///     .key_extractor(PeerKey::new(|peer: &ConnectInfo| peer.0).ipv6_prefix(56));
/// ```
pub struct PeerKey<T> {
    address: fn(&T) -> SocketAddr,
    prefix: u8,
}

/// A slot per client address as the n-th element from the right of `X-Forwarded-For` tells it: the element that the
/// n-th proxy of your own, seen from the server, has added.
#[derive(Clone, Copy, Debug)]
pub struct ForwardedFor {
    from_right: usize,
    prefix: u8,
}

/// How many bits of an IPv6 address count unless said otherwise.
const PREFIX: u8 = 64;

// === impl HeaderKey ===

impl HeaderKey {
    /// Creates an extractor that takes the value of `name`. Several such headers count as none.
    #[must_use]
    pub fn new(name: HeaderName) -> Self {
        Self(name)
    }
}

impl<B> KeyExtractor<B> for HeaderKey {
    fn extract<'a>(&self, request: &'a Request<B>) -> Extracted<'a> {
        let mut values = request.headers().get_all(&self.0).iter();
        let value =
            values.next().filter(|value| value.len() <= LONGEST_HOST).and_then(|value| value.to_str().ok());
        let one = value.filter(|_| values.next().is_none());
        KeyRef::name(one.unwrap_or("")).into()
    }
}

// === impl PeerKey ===

impl<T> PeerKey<T> {
    /// Creates an extractor that finds a `T` in the request's extensions and asks `address` for the peer's address
    /// in it.
    #[must_use]
    pub fn new(address: fn(&T) -> SocketAddr) -> Self {
        Self { address, prefix: PREFIX }
    }

    /// Says how many bits of an IPv6 address count; more than 128 are 128.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.prefix = bits;
        self
    }
}

impl<B, T: Send + Sync + 'static> KeyExtractor<B> for PeerKey<T> {
    fn extract<'a>(&self, request: &'a Request<B>) -> Extracted<'a> {
        let peer = request.extensions().get::<T>().map(self.address);
        key(peer.map(|peer| peer.ip()), self.prefix)
    }
}

impl<T> Clone for PeerKey<T> {
    fn clone(&self) -> Self {
        Self { address: self.address, prefix: self.prefix }
    }
}

impl<T> fmt::Debug for PeerKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerKey").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

// === impl ForwardedFor ===

impl ForwardedFor {
    /// Creates an extractor for the `n`-th element from the right; 0 counts as 1, the last one.
    #[must_use]
    pub fn from_right(n: usize) -> Self {
        Self { from_right: n.max(1), prefix: PREFIX }
    }

    /// Says how many bits of an IPv6 address count; more than 128 are 128.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.prefix = bits;
        self
    }
}

impl<B> KeyExtractor<B> for ForwardedFor {
    fn extract<'a>(&self, request: &'a Request<B>) -> Extracted<'a> {
        // Each header's elements from the right, and the last header first.
        let headers = request.headers().get_all("x-forwarded-for").iter().rev();
        let elements = headers.flat_map(|value| value.as_bytes().rsplit(|b| *b == b','));
        let element = elements.take(self.from_right).nth(self.from_right - 1);
        key(element.and_then(address), self.prefix)
    }
}

/// Reads `1.2.3.4`, `1.2.3.4:80`, `::1`, `[::1]` or `[::1]:80`.
fn address(element: &[u8]) -> Option<IpAddr> {
    let element = std::str::from_utf8(element).ok()?.trim();
    let bare = element.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(element);
    bare.parse().ok().or_else(|| element.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

/// The key of an address: IPv4 whole, also where IPv6 wraps it, IPv6 cut to a prefix.
fn key(address: Option<IpAddr>, prefix: u8) -> Extracted<'static> {
    let Some(address) = address.map(|address| address.to_canonical()) else { return KeyRef::name("").into() };
    let cut = match address {
        IpAddr::V6(address) if prefix < 128 => {
            let mask = !u128::MAX.checked_shr(prefix.into()).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
        whole => whole,
    };
    SlotKey::from(cut.to_string()).into()
}
