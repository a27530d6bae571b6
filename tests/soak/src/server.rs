//! A server that answers as planned, faults included. It writes what no well-behaved library would.

use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::BoxError;
use crate::plan::{Answer, Fault, Framing};

/// How long a stall lasts when nobody leaves.
const STALL: Duration = Duration::from_millis(300);

/// Serves for ever, after it has said at which port.
pub(crate) async fn run() -> Result<(), BoxError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{}", listener.local_addr()?.port());
    io::stdout().flush()?;
    loop {
        // Out of files, for instance: there will be some again.
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        tokio::spawn(async move { drop(serve(stream).await) });
    }
}

async fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut read = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = read.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        };
        let number = number(&read[..end]).ok_or(io::ErrorKind::InvalidData)?;
        read.drain(..end);
        if !answer(&mut stream, Answer::of(number)).await? {
            return Ok(());
        }
    }
}

/// The number that is the request's path.
fn number(head: &[u8]) -> Option<u64> {
    std::str::from_utf8(head).ok()?.split(' ').nth(1)?.strip_prefix('/')?.parse().ok()
}

/// Returns whether the connection goes on.
async fn answer(stream: &mut TcpStream, answer: Answer) -> io::Result<bool> {
    let Answer { head, framing, pieces, rest, fault } = answer;
    sleep(head).await;
    let is_chunked = matches!(framing, Framing::Chunked | Framing::Trailers);
    for step in 0..=pieces.len() {
        if let Some((fault, _)) = fault.filter(|(_, at)| *at == step) {
            commit(stream, fault).await?;
            return Ok(false);
        }
        let Some(piece) = step.checked_sub(1) else {
            let head = match framing {
                Framing::NoContent => "HTTP/1.1 204 No Content\r\n\r\n".into(),
                Framing::Length => {
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", pieces.iter().sum::<usize>())
                }
                Framing::Chunked => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".into(),
                Framing::Trailers => {
                    "HTTP/1.1 503 No\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n".into()
                }
                Framing::Close => String::from("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"),
            };
            stream.write_all(head.as_bytes()).await?;
            if let Framing::NoContent = framing {
                return Ok(true);
            }
            continue;
        };
        sleep(rest).await;
        let data = vec![b'x'; pieces[piece]];
        if is_chunked {
            let mut chunk = format!("{:x}\r\n", data.len()).into_bytes();
            chunk.extend(data);
            chunk.extend(b"\r\n");
            stream.write_all(&chunk).await?;
        } else {
            stream.write_all(&data).await?;
        }
    }
    match framing {
        Framing::Chunked => stream.write_all(b"0\r\n\r\n").await?,
        Framing::Trailers => stream.write_all(b"0\r\nx-sum: 5\r\n\r\n").await?,
        _ => {}
    }
    Ok(!matches!(framing, Framing::Close))
}

async fn commit(stream: &mut TcpStream, fault: Fault) -> io::Result<()> {
    match fault {
        Fault::Reset => stream.set_zero_linger(),
        Fault::Stall => timeout(STALL, stream.read(&mut [0])).await.map_or(Ok(()), |read| read.map(drop)),
        Fault::Garbage => stream.write_all(b"\0\xff<<garbage>>\r\n\x1b[0m\r\n\r\n").await,
        Fault::Close => Ok(()),
    }
}
