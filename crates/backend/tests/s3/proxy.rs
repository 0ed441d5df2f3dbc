//! A proxy between a back end and its object store that injects faults.

use forebay_backend::{Access, Fault};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

const REFUSED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// Calls `choose` with the method, key and headers of every request to decide whether it fails. Returns the
/// access through the proxy.
pub(crate) fn before(
    access: Access,
    choose: impl Fn(&str, &str, &str) -> Option<Fault> + Send + Sync + 'static,
) -> Access {
    let store: SocketAddr =
        access.endpoint.as_deref().unwrap().trim_start_matches("http://").parse().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let choose = Arc::new(choose);
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let choose = choose.clone();
            std::thread::spawn(move || pass(&client, store, &*choose));
        }
    });
    Access { endpoint: Some(format!("http://{address}")), ..access }
}

/// Forwards one request and its response; a closed connection is not an error.
fn pass(
    client: &TcpStream,
    store: SocketAddr,
    choose: &dyn Fn(&str, &str, &str) -> Option<Fault>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(client);
    let (mut lines, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", count)) => length = count.parse().unwrap(),
            Some(("connection", _)) => continue,
            _ if line.trim_end().is_empty() => break,
            _ => {}
        }
        lines.push(line);
    }
    let Some(first) = lines.first().cloned() else { return Ok(()) };
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (method, target) = first.split_once(' ').unwrap();
    let key = target.split([' ', '?']).next().unwrap().trim_start_matches("/bucket").trim_start_matches('/');
    let fault = choose(method, key, &lines.concat());
    let mut answer = REFUSED.to_vec();
    if !matches!(fault, Some(Fault::Before | Fault::Quota)) {
        let mut stream = TcpStream::connect(store)?;
        stream.write_all(&[lines.concat().as_bytes(), b"Connection: close\r\n\r\n", &body].concat())?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response)?;
        if fault.is_none() {
            answer = response;
        }
    }
    let mut client = client;
    client.write_all(&answer)?;
    client.shutdown(Shutdown::Both)
}
