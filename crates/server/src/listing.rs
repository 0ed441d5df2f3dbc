//! Directory listings: built piece by piece, each piece in its own turn and as one request of its user.
//!
//! A listing costs as much as hundreds of other requests. Built in one go it would be charged as one of them, and the
//! listings of one user could occupy all threads while other users wait for a core.
//!
//! **Invariant**: each piece counts as one concurrent request of its user (`limits.user_working`), and the user's job
//! is charged for every entry.

use crate::answers::entries;
use crate::blocking::{Begun, BlockingCalls};
use crate::caller::Caller;
use crate::cluster::{Blocked, Outcome};
use crate::file_homes::FileHomes;
use crate::handle::{Class, NameRequests, Requests, Resolver};
use crate::jobs::Membership;
use crate::per_user::UserBounds;
use crate::turns::{Entry as TurnEntry, Turn, Turns};
use crate::working::Work;
use forebay_model::{FileId, Result};
use forebay_store::Store;
use forebay_wire::{Answer, Entry, Reply, Request};
use std::sync::Arc;
use std::time::Duration;

/// Entries per piece: about as much work as a write of some pages.
const PIECE: usize = 128;
/// The charge for an entry in bytes: about its size in an answer.
const ENTRY: u32 = 256;

/// A listing in progress.
pub(crate) struct Listing {
    dir: FileId,
    cookie: u64,
    /// The requested number of entries.
    limit: usize,
    plus: bool,
    entries: Vec<Entry>,
}

impl Listing {
    /// The listing that a request asks for, if it is one.
    pub(crate) fn asked_by(request: &Request) -> Option<Listing> {
        match *request {
            Request::ReadDir { dir, cookie, limit, plus } => {
                Some(Listing { dir, cookie, limit: entries(limit), plus, entries: Vec::new() })
            }
            _ => None,
        }
    }

    /// Maximum number of entries of the next piece.
    fn next_len(&self) -> usize {
        (self.limit - self.entries.len()).min(PIECE)
    }

    /// The next piece, as a request.
    fn piece(&self) -> Request {
        let limit = u32::try_from(self.next_len()).expect("a piece is small");
        Request::ReadDir { dir: self.dir, cookie: self.cookie, limit, plus: self.plus }
    }

    /// Adds a piece; returns the whole answer after the last one.
    fn add(&mut self, reply: Reply) -> Option<Reply> {
        let Reply::Entries { entries, next } = reply else { return Some(reply) };
        match self.entries.is_empty() {
            true => self.entries = entries,
            false => self.entries.extend(entries),
        }
        match next {
            // Entries with the same hash are returned together, so there may be more than requested.
            Some(cookie) if self.entries.len() < self.limit => {
                self.cookie = cookie;
                None
            }
            next => Some(Reply::Entries { entries: std::mem::take(&mut self.entries), next }),
        }
    }
}

/// Builds listings.
pub(crate) struct Listings {
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) users: Arc<UserBounds>,
    pub(crate) names: Arc<NameRequests>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) blocking: Arc<BlockingCalls>,
    /// How long a piece waits for a permit of its user.
    pub(crate) patience: Duration,
    pub(crate) has_backing: bool,
}

impl Listings {
    /// Builds a short listing inline; returns a future for a long one.
    pub(crate) fn begin(
        self: &Arc<Listings>,
        job: &Arc<Membership>,
        caller: Caller,
        mut listing: Listing,
    ) -> Begun {
        let first = match self.at_once(job, &caller, &listing) {
            Some(Ok(reply)) => match listing.add(reply) {
                Some(whole) => return Begun::Done(Some(Ok(whole))),
                None => None,
            },
            stopped => stopped,
        };
        let (listings, job) = (self.clone(), job.clone());
        Begun::Later(Box::pin(async move { listings.go_on(&job, caller, listing, first).await }))
    }

    /// Builds a listing and waits as needed.
    pub(crate) async fn make(&self, job: &Membership, caller: Caller, listing: Listing) -> Option<Answer> {
        self.go_on(job, caller, listing, None).await
    }

    /// The first piece, if it does not have to wait.
    fn at_once(&self, job: &Membership, caller: &Caller, listing: &Listing) -> Option<Outcome> {
        if self.has_backing {
            return None;
        }
        let work = self.users.working.try_begin(caller.who.uid)?;
        match self.enter(job, listing) {
            Ok(TurnEntry::Now(turn)) => {
                job.got(&turn);
                Some(self.make_piece(caller, listing, (work, turn)))
            }
            // The turn is requested again by a task that can wait.
            Ok(TurnEntry::Later(_)) => None,
            Err(error) => Some(Err(error.into())),
        }
    }

    /// Builds the rest of a listing after its first piece.
    async fn go_on(
        &self,
        job: &Membership,
        caller: Caller,
        mut listing: Listing,
        mut first: Option<Outcome>,
    ) -> Option<Answer> {
        if self.has_backing {
            first = match self.find_listed(job, &caller, &listing).await {
                Ok(Ok(())) => None,
                Ok(Err(stop)) => Some(Err(stop)),
                Err(error) => return Some(Err(error)),
            };
        }
        loop {
            let handled = match first.take() {
                Some(handled) => handled,
                None => match self.next_piece(job, &caller, &listing).await {
                    Ok(handled) => handled,
                    Err(error) => return Some(Err(error)),
                },
            };
            let reply = match handled {
                Ok(reply) => reply,
                Err(stop) => match self.resolver.resolve(caller.clone(), &listing.piece(), stop).await? {
                    Ok(reply) => reply,
                    Err(error) => return Some(Err(error)),
                },
            };
            if let Some(whole) = listing.add(reply) {
                return Some(Ok(whole));
            }
            // Let other tasks on this thread run between two pieces.
            tokio::task::yield_now().await;
        }
    }

    /// Loads the directory from the back end and checks the caller's permission. This may take long and needs a permit for
    /// the back end.
    async fn find_listed(
        &self,
        job: &Membership,
        caller: &Caller,
        listing: &Listing,
    ) -> Result<Result<(), Blocked>> {
        self.homes.demand_joined()?;
        let entry = job.enter(self.turns.price(0), self.store.data().now())?;
        drop(job.wait(entry).await?);
        let (dir, cookie) = (listing.dir, listing.cookie);
        let (names, asking) = (self.names.clone(), caller.clone());
        let find = move || {
            let _pass = asking.connection_epoch.pass()?;
            names.find_listed(&asking, dir, cookie)
        };
        self.blocking.run(&caller.who, &listing.piece(), Class::Backing, find).await
    }

    /// Waits for the user's next working permit and for a turn, and builds the next piece.
    async fn next_piece(&self, job: &Membership, caller: &Caller, listing: &Listing) -> Result<Outcome> {
        // Waiting for requests of the same user blocks no other user.
        let work = self.users.working.begin(caller.who.uid, self.patience).await?;
        let turn = job.wait(self.enter(job, listing)?).await?;
        Ok(self.make_piece(caller, listing, (work, turn)))
    }

    fn enter(&self, job: &Membership, listing: &Listing) -> Result<TurnEntry> {
        self.homes.demand_joined()?;
        let bytes = ENTRY * u32::try_from(listing.next_len()).expect("a piece is small");
        job.enter(self.turns.price(bytes), self.store.data().now())
    }

    fn make_piece(&self, caller: &Caller, listing: &Listing, (_work, mut turn): (Work, Turn)) -> Outcome {
        let Listing { dir, cookie, plus, .. } = *listing;
        let handled = match self.has_backing {
            // The caller's permission was checked before.
            true => self.names.list(caller, dir, cookie, listing.next_len(), plus),
            false => self.requests.handle(caller, &listing.piece()),
        };
        let made = match &handled {
            Ok(Reply::Entries { entries, .. }) => entries.len(),
            _ => 0,
        };
        turn.spare(u64::from(ENTRY) * listing.next_len().saturating_sub(made) as u64);
        handled
    }
}
