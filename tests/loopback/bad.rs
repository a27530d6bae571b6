//! Servers that misbehave: the error reaches the caller as reqwest made it, and the permit is back with it.

use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tower_slot::Slots;

use super::{BoxError, in_flight};

/// What the server does with a connection once it has read the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Garbage,
    /// Answers TLS with plain text.
    NoTls,
    /// Shows a certificate that nobody vouches for.
    Untrusted,
    Refused,
    Stall,
    /// Resets the connection in the middle of a body.
    Reset,
    StallInBody,
    ShortBody,
}

/// What a caller can learn of an error.
#[derive(Debug, PartialEq)]
struct Seen {
    chain: Vec<String>,
    is: [bool; 6],
}

/// Has every fault happen to a client without slots and to `send`, and compares the errors.
pub(crate) async fn faults<F, Fut>(slots: &Slots, bare: &reqwest::Client, send: F)
where
    F: Fn(reqwest::Request) -> Fut,
    Fut: Future<Output = Result<reqwest::Response, BoxError>>,
{
    use Fault::{Garbage, NoTls, Refused, Reset, ShortBody, Stall, StallInBody, Untrusted};
    for fault in [Garbage, NoTls, Untrusted, Refused, Stall, Reset, StallInBody, ShortBody] {
        let go = Arc::new(Notify::new());
        let url = fault.start(go.clone()).await;
        let timed_out = matches!(fault, Stall | StallInBody);
        let request = || {
            let mut request = reqwest::Request::new(http::Method::GET, url.parse().unwrap());
            *request.timeout_mut() = timed_out.then_some(Duration::from_millis(500));
            request
        };

        let (_, expected) = outcome(bare.execute(request()), &go, || ()).await;
        let sent = async { send(request()).await.map_err(|e| *e.downcast::<reqwest::Error>().unwrap()) };
        let (kept, seen) = outcome(sent, &go, || assert_eq!(in_flight(slots), 1, "{fault:?}")).await;

        // The error and a response that failed in its body are still there.
        assert_eq!(in_flight(slots), 0, "{fault:?}");
        assert_eq!(seen, expected, "{fault:?}");
        assert_eq!(kept.is_some(), matches!(fault, Reset | StallInBody | ShortBody), "{fault:?}");
        assert_eq!(seen.is[0], timed_out, "{fault:?}: {seen:?}");
    }
    let counts = slots.stats("127.0.0.1").unwrap().counts;
    assert_eq!((counts.started, counts.failed), (8, 8));
}

/// The error of a request, at the headers or in the body, and the response if there was one.
async fn outcome(
    sent: impl Future<Output = reqwest::Result<reqwest::Response>>,
    go: &Notify,
    in_body: impl Fn(),
) -> (Option<reqwest::Response>, Seen) {
    let mut response = match sent.await {
        Ok(response) => response,
        Err(error) => return (None, Seen::new(&error)),
    };
    assert_eq!(response.chunk().await.unwrap().unwrap(), "0123456789");
    in_body();
    go.notify_one();
    let error = response.chunk().await.unwrap_err();
    (Some(response), Seen::new(&error))
}

// === impl Seen ===

impl Seen {
    fn new(error: &reqwest::Error) -> Self {
        let sources = std::iter::successors(Some(error as &dyn Error), |&error| error.source());
        // reqwest wraps the error of a body each time it converts the body; it says nothing else.
        let chain = sources.map(|e| e.to_string()).filter(|e| e != "request or response body error");
        let is = [
            error.is_timeout(),
            error.is_connect(),
            error.is_request(),
            error.is_body(),
            error.is_decode(),
            error.is_builder(),
        ];
        Self { chain: chain.collect(), is }
    }
}

// === impl Fault ===

impl Fault {
    /// Starts such a server. Those that fail in the body do so when told.
    async fn start(self, go: Arc<Notify>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr: SocketAddr = listener.local_addr().unwrap();
        if self != Self::Refused {
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(self.serve(stream, go.clone()));
                }
            });
        }
        let scheme = if matches!(self, Self::NoTls | Self::Untrusted) { "https" } else { "http" };
        format!("{scheme}://{addr}/")
    }

    async fn serve(self, mut stream: TcpStream, go: Arc<Notify>) -> std::io::Result<()> {
        if self == Self::Untrusted {
            return tls().accept(stream).await.map(drop);
        }
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await?;
        match self {
            Self::Garbage | Self::NoTls => stream.write_all(b"You reached nobody.\r\n\r\n").await?,
            Self::Untrusted | Self::Refused => {}
            Self::Stall => std::future::pending().await,
            Self::Reset | Self::StallInBody | Self::ShortBody => {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n0123456789").await?;
                go.notified().await;
                match self {
                    Self::StallInBody => std::future::pending().await,
                    Self::Reset => stream.set_zero_linger()?,
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// TLS with a certificate that signs itself.
fn tls() -> TlsAcceptor {
    let signed = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signed.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![signed.cert.der().clone()], key).unwrap();
    TlsAcceptor::from(Arc::new(config))
}
