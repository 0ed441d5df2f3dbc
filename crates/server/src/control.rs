//! Control connections: many concurrent requests, answered in the order they finish.
//!
//! A request whose turn comes at once is served inline. A request that must wait for its turn or for a device becomes a
//! task, and others overtake it. The number of tasks is bounded: at the bound the server stops reading, and further
//! requests stay with the peer. The server also stops reading from a peer that does not read its answers, and finally
//! closes its connection.

use crate::answers::{Reserved, longest_answer};
use crate::blocking::{Begun, at_place, failed};
use crate::caller::Caller;
use crate::cluster::{Blocked, Outcome, PEER_IN_FLIGHT, resolve};
use crate::connection::{Connection, Waited};
use crate::framing::gone;
use crate::handle::{Class, class};
use crate::jobs::Membership;
use crate::listing::{self, Listing};
use crate::service::Service;
use crate::turns::Entry;
use crate::{memory, shm_queue};
use forebay_model::{Error, ErrorKind, Result};
use forebay_wire::{Answer, Header, PeerReply, PeerRequest, Reply, Request};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::sync::mpsc;

/// A request's id, its answer (`None` if the outcome is unknown), and the reserved space of the answer.
type Finished = (u64, Option<Answer>, Option<Reserved>);

/// Number of requests served inline before the task yields to others on the same thread.
const IN_A_ROW: usize = 32;

/// Serves a control connection until it closes.
pub(crate) async fn serve(connection: &mut Connection) -> Result<()> {
    let usual = connection.service.config.limits.in_flight;
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
        Request::Queue => Ok(Some((id, Some(shm_queue::open(connection, &caller)), None))),
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
            match serve_request(&connection.service, &connection.job, caller, request) {
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

/// Starts a task that waits until there is space for the answer. The request enters the scheduler only after that, so
/// it blocks no other request.
fn wait_for_room(connection: &Connection, mut promise: Promise, caller: Caller, request: Request) {
    let reserved = connection.answers.clone().reserve(longest_answer(&request));
    let (service, job) = (connection.service.clone(), connection.job.clone());
    tokio::spawn(async move {
        match reserved.await {
            Ok(reserved) => promise.reserved = Some(reserved),
            Err(error) => return promise.keep(Some(Err(error))),
        }
        let answer = match serve_request(&service, &job, caller, request) {
            Begun::Done(answer) => answer,
            Begun::Later(answer) => answer.await,
        };
        promise.keep(answer);
    });
}

/// Serves a client's request inline, or returns a future for the part that must wait.
pub(crate) fn serve_request(
    service: &Arc<Service>,
    job: &Arc<Membership>,
    caller: Caller,
    request: Request,
) -> Begun {
    serve_as(class(&request, service.backing.is_some()), service, job, caller, request)
}

/// The same on a thread that may wait for the back end.
pub(crate) fn serve_on_this_thread(
    service: &Arc<Service>,
    job: &Arc<Membership>,
    caller: Caller,
    request: Request,
) -> Begun {
    let class = match class(&request, service.backing.is_some()) {
        Class::Backing => Class::Usual,
        class => class,
    };
    serve_as(class, service, job, caller, request)
}

fn serve_as(
    class: Class,
    service: &Arc<Service>,
    job: &Arc<Membership>,
    caller: Caller,
    request: Request,
) -> Begun {
    let (whose, work) = (job, || (service.clone(), job.clone()));
    let entry = match class {
        Class::Urgent | Class::Data => return Begun::Done(Some(answer(service.handle(&caller, &request)))),
        Class::Memory => {
            let (service, job) = work();
            let served = async move { Some(memory::serve(&service, &job, &caller, &request).await) };
            let mut served = Box::pin(served);
            // Usually the future is ready at once.
            return match served.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => Begun::Done(answer),
                Poll::Pending => Begun::Later(served),
            };
        }
        Class::Peer | Class::WaitsForPeers => None,
        _ if !service.life.serves() => {
            let (service, job) = work();
            return Begun::Later(Box::pin(async move {
                service.life.serving().await;
                if let Some(listing) = Listing::asked_by(&request) {
                    return listing::make(&service, &job, caller, listing).await;
                }
                match enter(&service, &job) {
                    Ok(entry) => later(service, &job, caller, request, class, Some(entry)).await,
                    Err(error) => Some(Err(error)),
                }
            }));
        }
        Class::Listing => {
            let listing = Listing::asked_by(&request).expect("requests of this class are listings");
            return listing::begin(service, job, caller, listing);
        }
        Class::Usual | Class::Slow | Class::Backing => match enter(service, whose) {
            Ok(entry) => Some(entry),
            Err(error) => return Begun::Done(Some(Err(error))),
        },
    };
    match (class, entry) {
        (Class::Usual, Some(Entry::Now(turn))) => {
            whose.got(&turn);
            // Before a back end the request may wait, and other requests should not wait for its turn.
            let _turn = service.backing.is_none().then_some(turn);
            match service.handle(&caller, &request) {
                Ok(reply) => Begun::Done(Some(Ok(reply))),
                Err(Blocked::Failed(error)) => Begun::Done(Some(Err(error))),
                Err(stop) => {
                    let service = service.clone();
                    Begun::Later(Box::pin(async move { resolve(&service, caller, &request, stop).await }))
                }
            }
        }
        (class, entry) => {
            let (service, job) = work();
            Begun::Later(Box::pin(async move { later(service, &job, caller, request, class, entry).await }))
        }
    }
}

/// A place in the scheduler's queue, or a turn.
fn enter(service: &Service, job: &Membership) -> Result<Entry> {
    service.homes.demand_joined()?;
    job.enter(service.turns.price(0), service.store.data().now())
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
    let service = &connection.service;
    if let PeerRequest::Introduce(meeting) = &peer_request {
        let joined = match service.greet_server(caller, meeting) {
            Ok(joined) => joined,
            Err(error) => return Some((id, Some(Err(error)), None)),
        };
        connection.server = Some(meeting.server);
        *aside += 1;
        let promise = Promise { id, answer: None, reserved: None, notify: notify.clone() };
        let (service, server) = (service.clone(), meeting.server);
        let connection_epoch = caller.connection_epoch.clone();
        tokio::spawn(async move {
            service.connection_epochs.renew(server, &connection_epoch).await;
            promise.keep(Some(Ok(Reply::Peer(Box::new(PeerReply::Introduced(joined))))));
        });
        return None;
    }
    let Some(from) = connection.server else {
        let text = "this request is for servers only: the connection has not identified one";
        return Some((id, Some(Err(Error::new(ErrorKind::NotPermitted, text))), None));
    };
    let answered = match caller.connection_epoch.pass() {
        Ok(_pass) => service.answer(from, &peer_request),
        Err(error) => Err(error.into()),
    };
    match answered {
        Ok(reply) => Some((id, Some(Ok(Reply::Peer(Box::new(reply)))), None)),
        Err(Blocked::Failed(error)) => Some((id, Some(Err(error)), None)),
        Err(_) => {
            *aside += 1;
            let promise = Promise { id, answer: None, reserved: None, notify: notify.clone() };
            let (service, connection_epoch) = (service.clone(), caller.connection_epoch.clone());
            tokio::spawn(async move {
                promise.keep(Some(service.answer_later(from, &connection_epoch, peer_request).await));
            });
            None
        }
    }
}

/// The answer of a request that never waits for another server.
fn answer(handled: Outcome) -> Answer {
    handled.map_err(|stop| match stop {
        Blocked::Failed(error) => error,
        _ => Error::new(ErrorKind::Busy, "the request needs other servers first: try again"),
    })
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

async fn later(
    service: Arc<Service>,
    job: &Membership,
    caller: Caller,
    request: Request,
    class: Class,
    entry: Option<Entry>,
) -> Option<Answer> {
    if let Some(entry) = entry {
        let turn = match job.wait(entry).await {
            Ok(turn) => turn,
            Err(error) => return Some(Err(error)),
        };
        if class == Class::Usual {
            let handled = service.handle(&caller, &request);
            drop(turn);
            return match handled {
                Ok(reply) => Some(Ok(reply)),
                Err(stop) => resolve(&service, caller, &request, stop).await,
            };
        }
        // Give the turn back while waiting for a device: holding it would block requests that need no device.
        drop(turn);
    }
    if let Request::Abandon { connection } = &request {
        service.connection_epochs.close(caller.session.owner(), *connection).await;
        return Some(Ok(Reply::Done));
    }
    if let Request::SetPolicy { policy } = &request {
        return Some(service.set_policy(&caller, policy).await);
    }
    if let Request::ReplaceServer { server } = &request {
        return Some(service.replace_server(&caller, *server));
    }
    if let Request::Keys(call) = &request {
        return Some(service.about_keys(&caller, call).await.map(|reply| Reply::Keys(Box::new(reply))));
    }
    if let Request::Losses = &request {
        return Some(service.losses(&caller).await.map(Reply::Losses));
    }
    if let Request::Repair { step } = &request {
        return Some(service.repair(&caller, *step).await.map(Reply::Repaired));
    }
    let handle = {
        let request = request.clone();
        move |service: &Service, caller: &Caller| service.handle(caller, &request)
    };
    match at_place(&service, &caller, &request, class, handle).await {
        Ok(Ok(reply)) => Some(Ok(reply)),
        Ok(Err(stop)) => resolve(&service, caller, &request, stop).await,
        Err(error) => Some(Err(error)),
    }
}
