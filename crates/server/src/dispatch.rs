//! How a client's request is served: at once, in its turn, or by a task that waits for a device or other servers.

use crate::blocking::{Begun, BlockingCalls};
use crate::caller::Caller;
use crate::cluster::{Blocked, LossSearch, Outcome, PeerAnswers};
use crate::connection_epoch::ConnectionEpochs;
use crate::file_homes::FileHomes;
use crate::handle::{Class, KeyRequests, Requests, Resolver, SharingRequests, class};
use crate::jobs::Membership;
use crate::lifecycle::Lifecycle;
use crate::listing::{Listing, Listings};
use crate::memory::MemoryRequests;
use crate::turns::{Entry, Turns};
use forebay_model::{Error, ErrorKind, Result};
use forebay_store::Store;
use forebay_wire::{Answer, Reply, Request};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Serves the requests of clients, however they arrive.
pub(crate) struct RequestServer {
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) life: Arc<Lifecycle>,
    pub(crate) connection_epochs: Arc<ConnectionEpochs>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) blocking: Arc<BlockingCalls>,
    pub(crate) listings: Arc<Listings>,
    pub(crate) memory: Arc<MemoryRequests>,
    pub(crate) keys: KeyRequests,
    pub(crate) sharing: Arc<SharingRequests>,
    pub(crate) losses: Arc<LossSearch>,
    pub(crate) peer_answers: Arc<PeerAnswers>,
    pub(crate) has_backing: bool,
}

impl RequestServer {
    /// Serves a client's request inline, or returns a future for the part that must wait.
    pub(crate) fn serve(
        self: &Arc<RequestServer>,
        job: &Arc<Membership>,
        caller: Caller,
        request: Request,
    ) -> Begun {
        self.serve_as(class(&request, self.has_backing), job, caller, request)
    }

    /// The same on a thread that may wait for the back end.
    pub(crate) fn serve_on_this_thread(
        self: &Arc<RequestServer>,
        job: &Arc<Membership>,
        caller: Caller,
        request: Request,
    ) -> Begun {
        let class = match class(&request, self.has_backing) {
            Class::Backing => Class::Usual,
            class => class,
        };
        self.serve_as(class, job, caller, request)
    }

    fn serve_as(
        self: &Arc<RequestServer>,
        class: Class,
        job: &Arc<Membership>,
        caller: Caller,
        request: Request,
    ) -> Begun {
        let entry = match class {
            Class::Urgent | Class::Data => {
                return Begun::Done(Some(answer(self.requests.handle(&caller, &request))));
            }
            Class::Memory => return self.serve_memory(job, caller, request),
            Class::Peer | Class::WaitsForPeers => None,
            _ if !self.life.serves() => return self.serve_once_ready(class, job, caller, request),
            Class::Listing => {
                let listing = Listing::asked_by(&request).expect("requests of this class are listings");
                return self.listings.begin(job, caller, listing);
            }
            Class::Usual | Class::Slow | Class::Backing => match self.enter(job) {
                Ok(entry) => Some(entry),
                Err(error) => return Begun::Done(Some(Err(error))),
            },
        };
        match (class, entry) {
            (Class::Usual, Some(Entry::Now(turn))) => {
                job.got(&turn);
                // Before a back end the request may wait, and other requests should not wait for its turn.
                let _turn = (!self.has_backing).then_some(turn);
                match self.requests.handle(&caller, &request) {
                    Ok(reply) => Begun::Done(Some(Ok(reply))),
                    Err(Blocked::Failed(error)) => Begun::Done(Some(Err(error))),
                    Err(stop) => {
                        let resolver = self.resolver.clone();
                        Begun::Later(Box::pin(async move { resolver.resolve(caller, &request, stop).await }))
                    }
                }
            }
            (class, entry) => {
                let (server, job) = (self.clone(), job.clone());
                Begun::Later(Box::pin(async move { server.later(&job, caller, request, class, entry).await }))
            }
        }
    }

    fn serve_memory(&self, job: &Arc<Membership>, caller: Caller, request: Request) -> Begun {
        let (memory, job) = (self.memory.clone(), job.clone());
        let served = async move { Some(memory.serve(&job, &caller, &request).await) };
        let mut served = Box::pin(served);
        // Usually the future is ready at once.
        match served.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Begun::Done(answer),
            Poll::Pending => Begun::Later(served),
        }
    }

    /// Serves a request when the server has recovered.
    fn serve_once_ready(
        self: &Arc<RequestServer>,
        class: Class,
        job: &Arc<Membership>,
        caller: Caller,
        request: Request,
    ) -> Begun {
        let (server, job) = (self.clone(), job.clone());
        Begun::Later(Box::pin(async move {
            server.life.serving().await;
            if let Some(listing) = Listing::asked_by(&request) {
                return server.listings.make(&job, caller, listing).await;
            }
            match server.enter(&job) {
                Ok(entry) => server.later(&job, caller, request, class, Some(entry)).await,
                Err(error) => Some(Err(error)),
            }
        }))
    }

    /// A place in the scheduler's queue, or a turn.
    fn enter(&self, job: &Membership) -> Result<Entry> {
        self.homes.demand_joined()?;
        job.enter(self.turns.price(0), self.store.data().now())
    }

    /// Serves a request that has to wait, for its turn first if it entered the scheduler.
    async fn later(
        &self,
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
                let handled = self.requests.handle(&caller, &request);
                drop(turn);
                return match handled {
                    Ok(reply) => Some(Ok(reply)),
                    Err(stop) => self.resolver.resolve(caller, &request, stop).await,
                };
            }
            // Give the turn back while waiting for a device: holding it would block requests that need no device.
            drop(turn);
        }
        if let Request::Abandon { connection } = &request {
            self.connection_epochs.close(caller.session.owner(), *connection).await;
            return Some(Ok(Reply::Done));
        }
        if let Request::SetPolicy { policy } = &request {
            return Some(self.sharing.set_policy(&caller, policy).await);
        }
        if let Request::ReplaceServer { server } = &request {
            return Some(self.peer_answers.replace_server(&caller, *server));
        }
        if let Request::Keys(call) = &request {
            return Some(self.keys.serve(&caller, call).await.map(|reply| Reply::Keys(Box::new(reply))));
        }
        if let Request::Losses = &request {
            return Some(self.losses.losses(&caller).await.map(Reply::Losses));
        }
        if let Request::Repair { step } = &request {
            return Some(self.losses.repair(&caller, *step).await.map(Reply::Repaired));
        }
        let handle = {
            let (requests, caller, request) = (self.requests.clone(), caller.clone(), request.clone());
            move || requests.handle(&caller, &request)
        };
        match self.blocking.run(&caller.who, &request, class, handle).await {
            Ok(Ok(reply)) => Some(Ok(reply)),
            Ok(Err(stop)) => self.resolver.resolve(caller, &request, stop).await,
            Err(error) => Some(Err(error)),
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
