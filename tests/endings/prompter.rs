//! Who has each actor around a request on sockets (the upload, a layer, the connector, the server) do its part of the
//! ending when the time has come, and knows when the request has come so far.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tower::service_fn;
use tower_slot::BoxError;

use crate::net::{Page, Server, Wire};
use crate::scene::Ending;
use crate::support::scripted_panic;

/// Knows the ending, and when its time has come.
#[derive(Clone, Debug)]
pub(crate) struct Prompter {
    pub(crate) ending: Ending,
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

    pub(crate) fn is_one_of(&self, endings: &[Ending]) -> bool {
        !self.shared.is_over.load(Ordering::Relaxed) && endings.contains(&self.ending)
    }

    fn here(&self) {
        self.shared.here.notify_one();
    }

    pub(crate) async fn told(&self) {
        self.shared.go.notified().await;
    }

    pub(crate) async fn here_and_told(&self) {
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
