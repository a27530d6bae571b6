//! What stands between the slots and the server: a layer, hyper-util's client and its connector.

use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::Frame;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpSocket, TcpStream};
use tower::Service;
use tower_slot::BoxError;

use crate::net::{Page, Wire};
use crate::prompter::Prompter;
use crate::scene::Ending;
use crate::support::scripted_panic;

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
