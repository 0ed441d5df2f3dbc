//! Control connections: many concurrent requests, answered in the order they finish.
//!
//! A request whose turn comes at once is served inline. A request that must wait for its turn or for a device becomes a
//! task, and others overtake it. The number of tasks is bounded: at the bound the server stops reading, and further
//! requests stay with the peer. The server also stops reading from a peer that does not read its answers, and finally
//! closes its connection.

use crate::answers::{Reserved, longest_answer};
use crate::blocking::{Begun, failed};
use crate::caller::Caller;
use crate::cluster::{Blocked, PEER_IN_FLIGHT};
use crate::connection::{Connection, Waited};
use crate::framing::gone;
use forebay_model::{Error, ErrorKind, Result};
use forebay_wire::{Answer, Header, PeerReply, PeerRequest, Reply, Request};
use tokio::sync::mpsc;

/// A request's id, its answer (`None` if the outcome is unknown), and the reserved space of the answer.
type Finished = (u64, Option<Answer>, Option<Reserved>);

/// Number of requests served inline before the task yields to others on the same thread.
const IN_A_ROW: usize = 32;

/// Serves a control connection until it closes.
pub(crate) async fn serve(connection: &mut Connection) -> Result<()> {
    let usual = connection.shared.limits.in_flight;
    let (notify, mut finished) = mpsc::channel::<Finished>(usual.max(PEER_IN_FLIGHT));
    let (mut aside, mut in_a_row) = (0, 0);
    loop {
        let limit = if connection.server.is_some() { usual.max(PEER_IN_FLIGHT) } else { usual };
        while let Ok(answered) = finished.try_recv() {
            put(connection, answered)?;
            aside -= 1;
            if connection.send_queue.is_full() {
                break;
            }
        }
        if aside < limit
            && let Some(header) = connection.frame()?
        {
            if let Some(answered) = begin(connection, header, &notify, &mut aside)? {
                put(connection, answered)?;
            }
            if connection.send_queue.is_full() {
                connection.send_queue.flush().await.map_err(|error| gone(&error))?;
            }
            in_a_row += 1;
            if in_a_row == IN_A_ROW {
                in_a_row = 0;
                tokio::task::yield_now().await;
            }
            continue;
        }
        in_a_row = 0;
        connection.send_queue.flush().await.map_err(|error| gone(&error))?;
        tokio::select! {
            Some(answered) = finished.recv() => {
                put(connection, answered)?;
                aside -= 1;
            }
            waited = connection.wait(), if aside < limit => match waited? {
                Waited::More => {}
                Waited::End => break,
            },
        }
    }
    // Requests in progress are finished and answered.
    drop(notify);
    while let Some(answered) = finished.recv().await {
        put(connection, answered)?;
        if connection.send_queue.is_full() {
            connection.send_queue.flush().await.map_err(|error| gone(&error))?;
        }
    }
    connection.send_queue.flush().await.map_err(|error| gone(&error))
}

/// Queues an answer for the next flush.
fn put(connection: &mut Connection, (id, answer, reserved): Finished) -> Result<()> {
    connection.send_queue.answer(id, &answer.ok_or_else(unknown)?, reserved);
    Ok(())
}

/// Serves a request inline, or starts a task for it.
fn begin(
    connection: &mut Connection,
    header: Header,
    notify: &mpsc::Sender<Finished>,
    aside: &mut usize,
) -> Result<Option<Finished>> {
    let id = header.id;
    if header.payload > 0 {
        return Err(Error::new(ErrorKind::Protocol, "control connections carry no payload"));
    }
    let (caller, request) = match connection.call(header)? {
        Ok(call) => call,
        Err(error) => return Ok(Some((id, Some(Err(error)), None))),
    };
    let promise = |reserved| Promise { id, answer: None, reserved, notify: notify.clone() };
    match request {
        Request::Peer(peer_request) => Ok(answer_peer(connection, id, &caller, *peer_request, notify, aside)),
        Request::Queue => Ok(Some((id, Some(open_queue(connection, &caller)), None))),
        request => {
            let reserved = match longest_answer(&request) {
                0 => None,
                bytes => match connection.answers.try_reserve(bytes) {
                    None => {
                        *aside += 1;
                        wait_for_room(connection, promise(None), caller, request);
                        return Ok(None);
                    }
                    reserved => reserved,
                },
            };
            match connection.shared.server.serve(&connection.job, caller, request) {
                Begun::Done(answer) => Ok(Some((id, answer, reserved))),
                Begun::Later(answer) => {
                    *aside += 1;
                    let promise = promise(reserved);
                    tokio::spawn(async move { promise.keep(answer.await) });
                    Ok(None)
                }
            }
        }
    }
}

/// Opens a queue in shared memory for a connection, in place of its earlier one.
fn open_queue(connection: &mut Connection, caller: &Caller) -> Answer {
    let queues = connection.shared.shm_queues.clone();
    queues.check(caller)?;
    if let Some(before) = connection.queue.take() {
        before.end(&queues);
    }
    let (queue, grant) = tokio::task::block_in_place(|| {
        queues.open(connection.peer_identity.clone(), connection.job.clone())
    })?;
    connection.queue = Some(queue);
    Ok(Reply::Queue(Box::new(grant)))
}

/// Starts a task that waits until there is space for the answer. The request enters the scheduler only after that, so
/// it blocks no other request.
fn wait_for_room(connection: &Connection, mut promise: Promise, caller: Caller, request: Request) {
    let reserved = connection.answers.clone().reserve(longest_answer(&request));
    let (server, job) = (connection.shared.server.clone(), connection.job.clone());
    tokio::spawn(async move {
        match reserved.await {
            Ok(reserved) => promise.reserved = Some(reserved),
            Err(error) => return promise.keep(Some(Err(error))),
        }
        let answer = match server.serve(&job, caller, request) {
            Begun::Done(answer) => answer,
            Begun::Later(answer) => answer.await,
        };
        promise.keep(answer);
    });
}

/// Answers another server inline, or starts a task for its request.
fn answer_peer(
    connection: &mut Connection,
    id: u64,
    caller: &Caller,
    peer_request: PeerRequest,
    notify: &mpsc::Sender<Finished>,
    aside: &mut usize,
) -> Option<Finished> {
    let shared = connection.shared.clone();
    if let PeerRequest::Introduce(meeting) = &peer_request {
        let joined = match shared.peer_answers.greet_server(caller, meeting) {
            Ok(joined) => joined,
            Err(error) => return Some((id, Some(Err(error)), None)),
        };
        connection.server = Some(meeting.server);
        *aside += 1;
        let promise = Promise { id, answer: None, reserved: None, notify: notify.clone() };
        let server = meeting.server;
        let connection_epoch = caller.connection_epoch.clone();
        tokio::spawn(async move {
            shared.connection_epochs.renew(server, &connection_epoch).await;
            promise.keep(Some(Ok(Reply::Peer(Box::new(PeerReply::Introduced(joined))))));
        });
        return None;
    }
    let Some(from) = connection.server else {
        let text = "this request is for servers only: the connection has not identified one";
        return Some((id, Some(Err(Error::new(ErrorKind::NotPermitted, text))), None));
    };
    let answered = match caller.connection_epoch.pass() {
        Ok(_pass) => shared.peer_answers.answer(from, &peer_request),
        Err(error) => Err(error.into()),
    };
    match answered {
        Ok(reply) => Some((id, Some(Ok(Reply::Peer(Box::new(reply)))), None)),
        Err(Blocked::Failed(error)) => Some((id, Some(Err(error)), None)),
        Err(_) => {
            *aside += 1;
            let promise = Promise { id, answer: None, reserved: None, notify: notify.clone() };
            let connection_epoch = caller.connection_epoch.clone();
            tokio::spawn(async move {
                let answers = &shared.peer_answers;
                promise.keep(Some(answers.answer_later(from, &connection_epoch, peer_request).await));
            });
            None
        }
    }
}

/// An answer that is sent in any case, even if the task panics.
struct Promise {
    id: u64,
    /// Set when the request is answered.
    answer: Option<Option<Answer>>,
    /// The reserved space of the answer.
    reserved: Option<Reserved>,
    notify: mpsc::Sender<Finished>,
}

impl Promise {
    fn keep(mut self, answer: Option<Answer>) {
        self.answer = Some(answer);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let answer = self.answer.take().unwrap_or_else(|| Some(Err(failed())));
        // The channel has space for every task; sending fails only if the connection is closed.
        let _ = self.notify.try_send((self.id, answer, self.reserved.take()));
    }
}

/// The reason for closing a connection instead of answering.
fn unknown() -> Error {
    Error::new(ErrorKind::Unreachable, "another server did not confirm a change: its outcome is unknown")
}
