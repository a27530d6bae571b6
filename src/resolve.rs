//! Slots per address: many names on one server share one slot.
//!
//! A name is looked up once for all who wait for it, the answer is kept for a while, and of several addresses always
//! the same one counts. So the requests of a name never part into a slot by its name and one by its address.
//!
//! ```
//! # use tower_slot::{PerIp, SlotConfig, SlotLayer};
//! let layer = SlotLayer::new(SlotConfig::default()).key_extractor(PerIp::system());
//! ```

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, ready};
use std::net::{IpAddr, Ipv4Addr};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Shared;
use http::Request;
use tokio::time::Instant;

use crate::error::BoxError;
use crate::extract::{Extracted, KeyExtractor, host};
use crate::jitter::LONGEST;
use crate::key::{KeyFuture, KeyRef, SlotKey};

/// A slot per address of the host: names that lead to one server share one slot, called as the address is.
///
/// Of a name's addresses the one that names the slot is the first in this order, whatever order the resolver gives
/// them in: IPv4 before IPv6, then the numerically smallest. An IPv4 address that IPv6 wraps is an IPv4 address. A
/// [`SlotKey`] in the request's extensions comes first and is taken as it is; an address needs no look-up, and
/// `localhost` is `127.0.0.1` without one; a request without a host goes through the slot named `""`.
///
/// The first requests to a name wait until it is looked up, all of them for the same look-up, and take their place
/// in the queue then; a wait timeout does not count that time. Nothing is spawned: whoever waits drives the look-up,
/// and if it goes away another one does. Answers are kept for [`ttl`](Self::ttl), failures for
/// [`failure_ttl`](Self::failure_ttl). A name whose address changes goes through another slot from then on.
///
/// A clone shares the answers.
///
/// ```
/// use std::future::ready;
/// use std::net::IpAddr;
/// use tower_slot::{PerIp, Resolve, Resolving, SlotConfig, SlotLayer};
///
/// #[derive(Debug)]
/// struct Hosts;
///
/// impl Resolve for Hosts {
///     fn resolve(&self, host: &str) -> Resolving {
///         let known = if host == "a.test" { vec![IpAddr::from([192, 0, 2, 1])] } else { vec![] };
///         Box::pin(ready(Ok(known)))
///     }
/// }
///
/// let layer = SlotLayer::new(SlotConfig::default()).key_extractor(PerIp::new(Hosts));
/// ```
pub struct PerIp<R = SystemResolver> {
    resolver: Arc<R>,
    known: Arc<Mutex<Known>>,
    ttl: Duration,
    failure_ttl: Duration,
    unresolved: Unresolved,
}

/// Looks up the addresses of a host.
///
/// [`PerIp`] asks rarely: once per name for all who wait, and again when the answer has grown old.
pub trait Resolve: Send + Sync + 'static {
    /// Looks up `host`: a name in lower case and without a dot at its end, never an address. No address is as good as
    /// an error, and so is a panic.
    fn resolve(&self, host: &str) -> Resolving;
}

/// A look-up on its way.
pub type Resolving = Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, BoxError>> + Send>>;

/// What becomes of a request whose host could not be looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unresolved {
    /// It fails with [`NoKey`](crate::SlotErrorKind::NoKey); the error's source is an [`UnresolvedError`].
    #[default]
    Refuse,
    /// It goes through the slot of its host's name.
    OwnSlot,
}

/// A host that could not be looked up.
#[derive(Clone, Debug)]
pub struct UnresolvedError {
    host: SlotKey,
    /// `None` if there simply are no addresses.
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The system's resolver, on tokio's threads for blocking work. It needs a tokio runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

/// A look-up by hickory-resolver, with its configuration and its own cache. It needs a tokio runtime.
#[cfg(feature = "hickory")]
#[cfg_attr(docsrs, doc(cfg(feature = "hickory")))]
#[derive(Clone)]
pub struct HickoryResolver(hickory_resolver::TokioResolver);

/// Answers, and look-ups on their way, in two generations: when the young one is full it becomes the old one, and what
/// was old and not asked for again is gone. So the number is bounded, and nothing has to be looked through.
#[derive(Default)]
struct Known {
    young: HashMap<Box<str>, Lookup>,
    old: HashMap<Box<str>, Lookup>,
    /// How many a generation holds.
    generation: usize,
}

// It is never polled itself, only its clones are: so what it found can be seen in it.
type Lookup = Shared<Pin<Box<dyn Future<Output = Found> + Send>>>;

/// What came of a look-up.
#[derive(Clone)]
struct Found {
    key: Result<SlotKey, UnresolvedError>,
    /// From when on it has to be looked up anew.
    until: Instant,
}

/// How long an answer is kept unless said otherwise.
const TTL: Duration = Duration::from_secs(60);

/// How long a failure is kept unless said otherwise.
const FAILURE_TTL: Duration = Duration::from_secs(5);

/// How many names are known at once unless said otherwise.
const MAX_NAMES: usize = 8_192;

// === impl PerIp ===

impl PerIp {
    /// Creates an extractor that asks the system's resolver.
    #[must_use]
    pub fn system() -> Self {
        Self::new(SystemResolver)
    }
}

impl<R> PerIp<R> {
    /// Creates an extractor that asks `resolver`.
    #[must_use]
    pub fn new(resolver: R) -> Self {
        let known = Known { generation: MAX_NAMES / 2, ..Known::default() };
        Self {
            resolver: Arc::new(resolver),
            known: Arc::new(Mutex::new(known)),
            ttl: TTL,
            failure_ttl: FAILURE_TTL,
            unresolved: Unresolved::Refuse,
        }
    }

    /// Says how long an answer is kept, from the moment it came; 60 s by default.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Says how long a failure is kept, from the moment it came; 5 s by default.
    #[must_use]
    pub fn failure_ttl(mut self, ttl: Duration) -> Self {
        self.failure_ttl = ttl;
        self
    }

    /// Says how many names are known at once at most, 8,192 by default; at least 2. Those asked for long ago go first.
    ///
    /// It begins anew, with nothing known, and shares nothing with earlier clones.
    #[must_use]
    pub fn max_names(mut self, n: usize) -> Self {
        let known = Known { generation: (n / 2).max(1), ..Known::default() };
        self.known = Arc::new(Mutex::new(known));
        self
    }

    /// Says what becomes of a request whose host could not be looked up; it fails by default.
    #[must_use]
    pub fn unresolved(mut self, policy: Unresolved) -> Self {
        self.unresolved = policy;
        self
    }
}

impl<R: Resolve> PerIp<R> {
    fn key(&self, name: &str) -> Extracted<'static> {
        // One lock for a look and, where it is in vain, a new look-up: of several who come at once one begins it.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.find(name);
        let answer = found.as_ref().map(|lookup| lookup.peek());
        let (lookup, gone) = match (answer, &found) {
            (Some(Some(answer)), _) if answer.until > Instant::now() => {
                let key = answer.key.clone();
                drop(known);
                return match or_own_slot(self.unresolved, key) {
                    Ok(key) => key.into(),
                    Err(error) => Extracted::Later(KeyFuture::new(ready(Err(error.into())))),
                };
            }
            (Some(None), Some(on_its_way)) => (on_its_way.clone(), None),
            _ => {
                let lookup = self.look_up(name);
                (lookup.clone(), Some(known.insert(name, lookup)))
            }
        };
        drop(known);
        // Not under the lock: a look-up is somebody else's code.
        drop((found, gone));
        let unresolved = self.unresolved;
        Extracted::Later(KeyFuture::new(
            lookup.map(move |found| or_own_slot(unresolved, found.key).map_err(BoxError::from)),
        ))
    }

    /// Begins a look-up; nothing of it runs before it is polled.
    fn look_up(&self, name: &str) -> Lookup {
        let (resolver, host) = (self.resolver.clone(), SlotKey::from(name));
        let (ttl, failure_ttl) = (self.ttl, self.failure_ttl);
        let addresses = async move {
            let asked = host.clone();
            let addresses = async move { resolver.resolve(asked.as_str()).await };
            // A panic would be everybody's, now and for ever.
            let addresses = match AssertUnwindSafe(addresses).catch_unwind().await {
                Ok(addresses) => addresses,
                Err(_) => Err("the resolver panicked".into()),
            };
            let key = match addresses {
                Ok(addresses) => first(addresses).ok_or(UnresolvedError { host, source: None }),
                Err(error) => Err(UnresolvedError { host, source: Some(error.into()) }),
            };
            let ttl = if key.is_ok() { ttl } else { failure_ttl };
            Found { key, until: Instant::now() + ttl.min(LONGEST) }
        };
        addresses.boxed().shared()
    }
}

impl<B, R: Resolve> KeyExtractor<B> for PerIp<R> {
    fn extract<'a>(&self, request: &'a Request<B>) -> Extracted<'a> {
        if let Some(key) = request.extensions().get::<SlotKey>() {
            return Extracted::Key(key.into());
        }
        let Some(host) = host(request).map(|host| host.canonical()) else { return KeyRef::name("").into() };
        match host.parse::<IpAddr>() {
            Ok(address) => key(address).into(),
            // An address with a zone.
            Err(_) if host.contains(':') => SlotKey::from(&*host).into(),
            Err(_) if host == "localhost" => key(Ipv4Addr::LOCALHOST.into()).into(),
            Err(_) => self.key(&host),
        }
    }
}

impl<R> Clone for PerIp<R> {
    fn clone(&self) -> Self {
        Self { resolver: self.resolver.clone(), known: self.known.clone(), ..*self }
    }
}

impl<R> fmt::Debug for PerIp<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerIp")
            .field("ttl", &self.ttl)
            .field("failure_ttl", &self.failure_ttl)
            .field("unresolved", &self.unresolved)
            .finish_non_exhaustive()
    }
}

fn or_own_slot(
    policy: Unresolved,
    key: Result<SlotKey, UnresolvedError>,
) -> Result<SlotKey, UnresolvedError> {
    match policy {
        Unresolved::Refuse => key,
        Unresolved::OwnSlot => Ok(key.unwrap_or_else(|error| error.host)),
    }
}

/// The address that names the slot: IPv4 before IPv6, then the numerically smallest.
fn first(addresses: Vec<IpAddr>) -> Option<SlotKey> {
    addresses.iter().map(IpAddr::to_canonical).min().map(key)
}

fn key(address: IpAddr) -> SlotKey {
    address.to_canonical().to_string().into()
}

// === impl Known ===

impl Known {
    fn find(&mut self, name: &str) -> Option<Lookup> {
        // What is asked for stays young while there is room.
        if self.young.len() < self.generation {
            self.young.extend(self.old.remove_entry(name));
        }
        self.young.get(name).or_else(|| self.old.get(name)).cloned()
    }

    /// Keeps a look-up, and returns what had to make room.
    #[must_use]
    fn insert(&mut self, name: &str, lookup: Lookup) -> (Option<Lookup>, HashMap<Box<str>, Lookup>) {
        if let Some(known) = self.young.get_mut(name) {
            return (Some(std::mem::replace(known, lookup)), HashMap::new());
        }
        let mut gone = HashMap::new();
        if self.young.len() >= self.generation {
            gone = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        }
        self.young.insert(name.into(), lookup);
        (self.old.remove(name), gone)
    }
}

// === impl UnresolvedError ===

impl UnresolvedError {
    /// Returns the host that could not be looked up.
    #[must_use]
    pub fn host(&self) -> &SlotKey {
        &self.host
    }
}

impl fmt::Display for UnresolvedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Some(_) => write!(f, "host {:?} could not be looked up", self.host),
            None => write!(f, "host {:?} has no address", self.host),
        }
    }
}

impl std::error::Error for UnresolvedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

// === impl SystemResolver ===

impl Resolve for SystemResolver {
    fn resolve(&self, host: &str) -> Resolving {
        let host = host.to_owned();
        Box::pin(async move {
            let addresses = tokio::net::lookup_host((host.as_str(), 0)).await?;
            Ok(addresses.map(|address| address.ip()).collect())
        })
    }
}

// === impl HickoryResolver ===

#[cfg(feature = "hickory")]
impl HickoryResolver {
    /// Creates one that asks the servers which the system is set to.
    ///
    /// # Errors
    ///
    /// The system's settings could not be read.
    pub fn from_system() -> Result<Self, BoxError> {
        Ok(Self::new(hickory_resolver::TokioResolver::builder_tokio()?.build()?))
    }

    /// Creates one from a resolver that was set up elsewhere.
    #[must_use]
    pub fn new(resolver: hickory_resolver::TokioResolver) -> Self {
        Self(resolver)
    }
}

#[cfg(feature = "hickory")]
impl Resolve for HickoryResolver {
    fn resolve(&self, host: &str) -> Resolving {
        let (resolver, host) = (self.0.clone(), host.to_owned());
        Box::pin(async move { Ok(resolver.lookup_ip(host).await?.iter().collect()) })
    }
}

#[cfg(feature = "hickory")]
impl fmt::Debug for HickoryResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HickoryResolver").finish_non_exhaustive()
    }
}
