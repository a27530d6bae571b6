//! Who stands around a request on sockets: a layer, a connector and a server. Each does its part of the ending when
//! the prompter says so, and has told before that the request has come so far.

use std::future::{Future, pending};
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body::Frame;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;
use tower::{Service, service_fn};
use tower_slot::BoxError;

use crate::net::{Page, Server, Wire};
use crate::scene::Ending;
use crate::support::scripted_panic;

/// Knows the ending, and when its time has come.
#[derive(Clone, Debug)]
pub(crate) struct Prompter {
    ending: Ending,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    here: Notify,
    go: Notify,
    is_over: AtomicBool,
}

/// Says that the request has come so far as it is dropped.
struct Gone(Prompter);

/// The layer between the slots and the client.
pub(crate) struct Between {
    client: Client<Connector, Page>,
    prompter: Prompter,
    ready: Option<Boxed<Result<(), BoxError>>>,
}

/// Connects to the port that the URI names.
#[derive(Clone)]
pub(crate) struct Connector(Prompter);

pub(crate) type ResBody = UnsyncBoxBody<Bytes, BoxError>;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

// === impl Prompter ===

impl Prompter {
    pub(crate) fn new(ending: Ending) -> Self {
        Self { ending, shared: Arc::default() }
    }

    /// Resolves when the request has come as far as it shall.
    pub(crate) async fn reached(&self) {
        self.shared.here.notified().await;
    }

    /// Has the actors do their part.
    pub(crate) fn go(&self) {
        self.shared.go.notify_one();
    }

    /// From now on nothing happens any more.
    pub(crate) fn over(&self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }

    fn is_one_of(&self, endings: &[Ending]) -> bool {
        !self.shared.is_over.load(Ordering::Relaxed) && endings.contains(&self.ending)
    }

    fn here(&self) {
        self.shared.here.notify_one();
    }

    async fn told(&self) {
        self.shared.go.notified().await;
    }

    async fn here_and_told(&self) {
        self.here();
        self.told().await;
    }

    /// The request, if it goes that far.
    pub(crate) fn request(&self, server: &Server) -> Request<Page> {
        use Ending::*;
        let this = self.clone();
        let told = async move { this.told().await };
        let upload = Page::chunked().data("up");
        let upload = match self.ending {
            Uploading | Early | UploadCut => upload.stall(),
            UploadError => upload.when(told).breaking(),
            PanicInUpload => Page::chunked().when(async { scripted_panic() }),
            UploadPanicked => {
                let gone = Gone(self.clone());
                upload.when(async {
                    told.await;
                    let _gone = gone;
                    scripted_panic()
                })
            }
            _ => Page::sized(),
        };
        let request = Request::post(server.uri("a.test", "/")).header(header::TE, "trailers");
        request.body(upload).unwrap()
    }

    /// Starts a server that answers one request as the ending asks.
    pub(crate) async fn server(&self, wire: Wire) -> Server {
        let this = self.clone();
        if self.ending == Ending::Garbage {
            return Server::raw(wire, move |stream| {
                let this = this.clone();
                async move { this.babble(stream).await.unwrap_or_default() }
            })
            .await;
        }
        let answer = move |request| {
            let this = this.clone();
            async move { this.answer(request).await }
        };
        Server::start(wire, service_fn(answer)).await
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Page>, BoxError> {
        use Ending::*;
        let mut upload = request.into_body();
        if self.is_one_of(&[Uploading, UploadPanicked, Early, UploadError, UploadCut]) {
            assert_eq!(upload.frame().await.unwrap()?.into_data().unwrap(), "up");
        }
        if !self.ending.is_of_body() {
            self.here();
        }
        if self.is_one_of(&[Empty, Early, Error, UploadCut]) {
            self.told().await;
        }
        let this = self.clone();
        let told = async move { this.told().await };
        let page = Page::chunked().data("x");
        let page = match self.ending {
            Empty | Early => Page::sized(),
            Untouched | AfterFrame | Read2xx | Read5xx => page.when(told),
            WhilePending | LostInBody => page.stall(),
            LastFrame => Page::sized().data("x").when(told).data("y"),
            PanicInBody => page.when(told).data("y"),
            Trailers => page.when(told).trailers(),
            BodyError => page.when(told).breaking(),
            Error | UploadCut => return Err("the handler failed".into()),
            _ => pending().await,
        };
        let mut response = page.response();
        if self.ending == Read5xx {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response.headers_mut().insert(header::TRAILER, HeaderValue::from_static("x-checked"));
        Ok(response)
    }

    /// Answers what no protocol knows.
    async fn babble(self, mut stream: TcpStream) -> io::Result<()> {
        stream.read_u8().await?;
        self.here_and_told().await;
        stream.write_all(b"You reached nobody.\r\n\r\n").await?;
        pending().await
    }
}

// === impl Gone ===

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.here();
    }
}

// === impl Between ===

impl Between {
    pub(crate) fn new(wire: Wire, prompter: Prompter) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .retry_canceled_requests(false)
            .http2_only(wire == Wire::Http2)
            .build(Connector(prompter.clone()));
        Self { client, prompter, ready: None }
    }
}

// A clone has not been polled ready.
impl Clone for Between {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), prompter: self.prompter.clone(), ready: None }
    }
}

impl Service<Request<Page>> for Between {
    type Response = Response<ResBody>;
    type Error = BoxError;
    type Future = Boxed<Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        use Ending::*;
        if self.prompter.is_one_of(&[NotReady, NeverReady, PanicInReady, PanicInCall]) {
            let prompter = self.prompter.clone();
            let ready = self.ready.get_or_insert_with(|| {
                Box::pin(async move {
                    prompter.here_and_told().await;
                    match prompter.ending {
                        NeverReady => Err("never ready".into()),
                        PanicInReady => scripted_panic(),
                        _ => Ok(()),
                    }
                })
            });
            ready!(ready.as_mut().poll(cx))?;
        }
        self.client.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Page>) -> Self::Future {
        use Ending::*;
        if self.prompter.is_one_of(&[PanicInCall]) {
            scripted_panic();
        }
        let (answer, prompter) = (self.client.request(request), self.prompter.clone());
        Box::pin(async move {
            let response = tokio::select! {
                response = answer => response?,
                () = prompter.told(), if prompter.is_one_of(&[GivenUp, PanicInFuture]) => {
                    match prompter.ending {
                        PanicInFuture => scripted_panic(),
                        _ => return Err("no patience".into()),
                    }
                }
            };
            let look = move |frame: Frame<Bytes>| {
                if prompter.is_one_of(&[PanicInBody]) && frame.data_ref().is_some_and(|data| data == "y") {
                    scripted_panic();
                }
                frame
            };
            Ok(response.map(|body| body.map_frame(look).map_err(Into::into).boxed_unsync()))
        })
    }
}

// === impl Connector ===

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Boxed<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        use Ending::*;
        let prompter = self.0.clone();
        Box::pin(async move {
            let mut port = uri.port_u16().unwrap();
            // Nobody listens there.
            let nobody = TcpSocket::new_v4()?;
            if prompter.is_one_of(&[Connecting, Refused, PanicInConnect, PanicInUpload]) {
                prompter.here_and_told().await;
                match prompter.ending {
                    Refused => {
                        nobody.bind((Ipv4Addr::LOCALHOST, 0).into())?;
                        port = nobody.local_addr()?.port();
                    }
                    PanicInConnect => scripted_panic(),
                    _ => {}
                }
            }
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        })
    }
}
