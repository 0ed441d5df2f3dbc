//! Control connections: many requests at once, answered as they finish.
//!
//! A request whose turn it is at once is served on the spot. One that has to wait, for its turn or for a device, is
//! set aside, and others overtake it. The number set aside is bounded: at the bound nothing more is read, and the
//! rest stays with the peer. A peer that does not take its answers is not read from either, and given up in the end.

use crate::connection::{Connection, Waited};
use crate::handle::{Class, class};
use crate::jobs::Membership;
use crate::link::gone;
use crate::service::{Caller, Service};
use crate::several::{Handled, PEER_IN_FLIGHT, Stop, resolve};
use crate::turns::Entry;
use crate::{desk, memory};
use forebay_model::{Error, ErrorKind, Result};
use forebay_wire::{Answer, Header, PeerReply, PeerRequest, Reply, Request};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::sync::mpsc;

/// A request and its answer; none if nobody knows whether it was done.
type Finished = (u64, Option<Answer>);

/// Serves a control connection to its end.
pub(crate) async fn serve(connection: &mut Connection) -> Result<()> {
    let usual = connection.service.config.limits.in_flight;
    let (tell, mut finished) = mpsc::channel::<Finished>(usual.max(PEER_IN_FLIGHT));
    let mut aside = 0;
    loop {
        let limit = if connection.server.is_some() { usual.max(PEER_IN_FLIGHT) } else { usual };
        while let Ok((id, answer)) = finished.try_recv() {
            connection.outbox.answer(id, &answer.ok_or_else(unknown)?);
            aside -= 1;
        }
        if aside < limit
            && let Some(header) = connection.frame()?
        {
            if let Some((id, answer)) = begin(connection, header, &tell, &mut aside)? {
                connection.outbox.answer(id, &answer.ok_or_else(unknown)?);
            }
            if connection.outbox.is_full() {
                connection.outbox.flush().await.map_err(|error| gone(&error))?;
            }
            continue;
        }
        connection.outbox.flush().await.map_err(|error| gone(&error))?;
        tokio::select! {
            Some((id, answer)) = finished.recv() => {
                connection.outbox.answer(id, &answer.ok_or_else(unknown)?);
                aside -= 1;
            }
            waited = connection.wait(), if aside < limit => match waited? {
                Waited::More => {}
                Waited::End => break,
            },
        }
    }
    // What was begun is finished and answered.
    drop(tell);
    while let Some((id, answer)) = finished.recv().await {
        connection.outbox.answer(id, &answer.ok_or_else(unknown)?);
    }
    connection.outbox.flush().await.map_err(|error| gone(&error))
}

/// Serves a request on the spot, or sets it aside.
fn begin(
    connection: &mut Connection,
    header: Header,
    tell: &mpsc::Sender<Finished>,
    aside: &mut usize,
) -> Result<Option<Finished>> {
    let id = header.id;
    if header.payload > 0 {
        return Err(Error::new(ErrorKind::Protocol, "a payload came on a control connection"));
    }
    let (caller, request) = match connection.call(header)? {
        Ok(call) => call,
        Err(error) => return Ok(Some((id, Some(Err(error))))),
    };
    match request {
        Request::Peer(asked) => Ok(answer_peer(connection, id, &caller, *asked, tell, aside)),
        Request::Queue => Ok(Some((id, Some(desk::open(connection, &caller))))),
        request => match ask(&connection.service, &connection.job, caller, request) {
            Begun::Done(answer) => Ok(Some((id, answer))),
            Begun::Later(answer) => {
                *aside += 1;
                let promise = Promise { id, answer: None, tell: tell.clone() };
                tokio::spawn(async move { promise.keep(answer.await) });
                Ok(None)
            }
        },
    }
}

/// What becomes of a request; no answer if nobody knows whether it was done.
pub(crate) enum Begun {
    /// It was served on the spot.
    Done(Option<Answer>),
    /// Something has to be waited for.
    Later(Pin<Box<dyn Future<Output = Option<Answer>> + Send>>),
}

/// Serves a request of a client on the spot, or says what has to be waited for.
pub(crate) fn ask(service: &Arc<Service>, job: &Arc<Membership>, caller: Caller, request: Request) -> Begun {
    let class = class(&request, service.union.is_some());
    let (whose, work) = (job, || (service.clone(), job.clone()));
    let entry = match class {
        Class::Urgent | Class::Data => return Begun::Done(Some(answer(service.handle(&caller, &request)))),
        Class::Memory => {
            let (service, job) = work();
            let served = async move { Some(memory::serve(&service, &job, &caller, &request).await) };
            let mut served = Box::pin(served);
            // Most of the time there is nothing to wait for.
            return match served.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => Begun::Done(answer),
                Poll::Pending => Begun::Later(served),
            };
        }
        Class::Peer | Class::Errand => None,
        _ if !service.serves() => {
            let (service, job) = work();
            return Begun::Later(Box::pin(async move {
                service.serving().await;
                match enter(&service, &job) {
                    Ok(entry) => later(service, &job, caller, request, class, Some(entry)).await,
                    Err(error) => Some(Err(error)),
                }
            }));
        }
        Class::Usual | Class::Slow | Class::Behind => match enter(service, whose) {
            Ok(entry) => Some(entry),
            Err(error) => return Begun::Done(Some(Err(error))),
        },
    };
    match (class, entry) {
        (Class::Usual, Some(Entry::Now(turn))) => {
            whose.got(&turn);
            match service.handle(&caller, &request) {
                Ok(reply) => Begun::Done(Some(Ok(reply))),
                Err(Stop::Failed(error)) => Begun::Done(Some(Err(error))),
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

/// A place among those who wait for their turn, or a turn.
fn enter(service: &Service, job: &Membership) -> Result<Entry> {
    service.demand_joined()?;
    job.enter(service.turns.price(0), service.store.data().now())
}

/// Answers another server on the spot, or sets its request aside.
fn answer_peer(
    connection: &mut Connection,
    id: u64,
    caller: &Caller,
    asked: PeerRequest,
    tell: &mpsc::Sender<Finished>,
    aside: &mut usize,
) -> Option<Finished> {
    let service = &connection.service;
    if let PeerRequest::Meet(meeting) = &asked {
        let met = service.greet_server(caller, meeting);
        if met.is_ok() {
            connection.server = Some(meeting.server);
            tokio::task::block_in_place(|| service.fences.renew(meeting.server, &caller.fence));
        }
        return Some((id, Some(met.map(|met| Reply::Peer(Box::new(PeerReply::Met(met)))))));
    }
    let Some(from) = connection.server else {
        let text = "only a server that has said which one it is may ask this";
        return Some((id, Some(Err(Error::new(ErrorKind::NotPermitted, text)))));
    };
    let answered = match caller.fence.pass() {
        Ok(_pass) => service.answer(from, &asked),
        Err(error) => Err(error.into()),
    };
    match answered {
        Ok(reply) => Some((id, Some(Ok(Reply::Peer(Box::new(reply)))))),
        Err(Stop::Failed(error)) => Some((id, Some(Err(error)))),
        Err(_) => {
            *aside += 1;
            let promise = Promise { id, answer: None, tell: tell.clone() };
            let (service, fence) = (service.clone(), caller.fence.clone());
            tokio::spawn(async move { promise.keep(Some(service.answer_later(from, &fence, asked).await)) });
            None
        }
    }
}

/// What a request comes to that never waits for another server.
fn answer(handled: Handled) -> Answer {
    handled.map_err(|stop| match stop {
        Stop::Failed(error) => error,
        stop => Error::new(ErrorKind::Busy, format!("other servers would have to be asked first: {stop:?}")),
    })
}

/// An answer that will be given, whatever happens to the request.
struct Promise {
    id: u64,
    /// What it was kept with.
    answer: Option<Option<Answer>>,
    tell: mpsc::Sender<Finished>,
}

impl Promise {
    fn keep(mut self, answer: Option<Answer>) {
        self.answer = Some(answer);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let answer = self.answer.take().unwrap_or_else(|| Some(Err(failed())));
        // There is room for every request set aside; only the connection may be gone, and with it who waited.
        let _ = self.tell.try_send((self.id, answer));
    }
}

/// Why a connection is closed instead of answering.
fn unknown() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "another server was asked to do something, and nobody knows whether it has",
    )
}

pub(crate) fn failed() -> Error {
    Error::new(ErrorKind::Io, "the server failed while it served this request: its log says how")
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
        // A device is waited for without the turn: that would stop others who need no device.
        drop(turn);
    }
    if let Request::SetPolicy { policy } = &request {
        return Some(service.set_policy(&caller, policy).await);
    }
    if let Request::ReplaceServer { server } = &request {
        return Some(service.replace_server(&caller, *server));
    }
    if let Request::Losses = &request {
        return Some(service.losses(&caller).await.map(Reply::Losses));
    }
    let places = match (class, &service.union) {
        (Class::Behind, Some(union)) => &union.waiting,
        _ => &service.syncs,
    };
    let Ok(_place) = places.acquire().await else { return Some(Err(ErrorKind::Busy.into())) };
    let (work, who, asked) = (service.clone(), caller.clone(), request.clone());
    let done = tokio::task::spawn_blocking(move || work.handle(&who, &asked)).await;
    match done.unwrap_or_else(|_| Err(failed().into())) {
        Ok(reply) => Some(Ok(reply)),
        Err(stop) => resolve(&service, caller, &request, stop).await,
    }
}
