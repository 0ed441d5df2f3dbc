//! Data connections: writes and reads of one job, in order.
//!
//! The way of a write: header and body are read, the token is checked; when the first byte of the payload has come, the
//! turn is waited for, with the payload still in the socket; then space is reserved, filled from the socket with no copy
//! in between, one turn for every slice, and committed. Whatever goes wrong before the payload was read, it is read and
//! thrown away, so that the connection stays in step; an error inside the payload ends the connection.
//!
//! The way of a read: token, turn, pieces pinned in their regions, and from there to the socket, one turn for every
//! slice. Where a piece is behind, it is fetched first.

use crate::connection::{Connection, Waited};
use crate::link::gone;
use crate::opens::Hold;
use crate::pace::Pace;
use crate::service::Caller;
use crate::several::{Stop, Undone, Writer};
use crate::turns::Turn;
use crate::union::Part;
use forebay_model::{Access, Error, ErrorKind, Layout, Result, Span};
use forebay_policy::Cost;
use forebay_policy::route::Route;
use forebay_store::{Filled, Grant, Piece, Place};
use forebay_wire::{At, Header, MAX_PAYLOAD, PeerRequest, Reply, Request, Token};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::time::Instant;

/// How much is read at once: what is checksummed next is still in the cache.
const CHUNK: usize = 256 << 10;
/// Where holes are read from.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Why a write was not done.
enum Failure {
    /// The rest of the payload is thrown away, and this is the answer.
    Refused(Error),
    /// The connection cannot go on.
    Broken(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Refused(error)
    }
}

/// Serves a data connection to its end.
pub(crate) async fn serve(connection: &mut Connection) -> Result<()> {
    loop {
        let Some(header) = connection.frame()? else {
            connection.outbox.flush().await.map_err(|error| gone(&error))?;
            match connection.wait().await? {
                Waited::More => continue,
                Waited::End => return Ok(()),
            }
        };
        let mut payload = Payload { left: header.payload, deadline: connection.deadline() };
        let done = match connection.call(header)? {
            Ok((caller, Request::Write { token, at })) => {
                connection.write(&caller, &token, at, &mut payload).await
            }
            Ok((caller, Request::Read { token, offset, len })) if header.payload == 0 => {
                connection.read(&caller, header, &token, offset, len).await
            }
            Ok(_) => {
                let text = "only reads and writes travel on data connections, and only writes with a payload";
                Err(Failure::Refused(Error::new(ErrorKind::Protocol, text)))
            }
            Err(error) => Err(Failure::Refused(error)),
        };
        let answer = match done {
            Ok(None) => continue,
            Ok(Some(reply)) => Ok(reply),
            Err(Failure::Refused(error)) => Err(error),
            Err(Failure::Broken(error)) => return Err(error),
        };
        connection.discard(&mut payload).await?;
        connection.outbox.answer(header.id, &answer);
        if connection.outbox.is_full() {
            connection.outbox.flush().await.map_err(|error| gone(&error))?;
        }
    }
}

/// The payload of a frame, as far as it has not been read.
struct Payload {
    left: u32,
    deadline: Instant,
}

impl Connection {
    fn deadline(&self) -> Instant {
        Instant::now() + self.service.config.times.reservation
    }

    async fn write(
        &mut self,
        caller: &Caller,
        token: &Token,
        at: At,
        payload: &mut Payload,
    ) -> Result<Option<Reply>, Failure> {
        // Held to the end, so that the file cannot go while its bytes come.
        let hold = self.claim(caller, token, Access::WRITE).await?;
        let (place, offset) = match at {
            At::Offset(offset) => (Place::At(offset), Some(offset)),
            At::End => (Place::End, None),
        };
        let len = payload.left;
        if len == 0 {
            let offset = match offset {
                Some(offset) => offset,
                None => self.service.store.data().facts(token.file)?.size,
            };
            return Ok(Some(Reply::Written { offset }));
        }
        if at == At::End
            && let Some(layout) = self.service.shared_layout(token.file)?
        {
            return self.append(caller, token, &layout, &hold, payload).await;
        }
        let span = offset.and_then(|offset| Span::at(offset, u64::from(len)));
        if let Some(span) = span.filter(|&span| self.service.way(token.file, Some(span)) == Route::Direct) {
            return self.write_past(caller, token, span, &hold, payload).await;
        }
        let mut first = VecDeque::new();
        if let Some(span) = span.filter(|_| self.service.ways.bypass()) {
            first = self.reserve_now(token, len)?;
            let found: u64 = first.iter().map(|grant: &Grant| u64::from(grant.len())).sum();
            if found < u64::from(len) && self.service.may_fly(token.file, span) {
                drop(first);
                return self.write_past(caller, token, span, &hold, payload).await;
            }
        }
        let mut pace = self.begin(caller, &hold, payload).await?;
        let parts = self.receive(token, payload, &mut pace, first).await?;
        let done = {
            let _pass = caller.fence.pass()?;
            self.service.store.data().commit(token.file, place, parts, self.job.id())?
        };
        Ok(Some(Reply::Written { offset: done.offset }))
    }

    /// The first turn of a payload, which has begun to come.
    async fn begin(&mut self, caller: &Caller, hold: &Hold, payload: &mut Payload) -> Result<Pace, Failure> {
        self.shed_set_id(caller, hold).await?;
        self.flush_first(payload.left).await?;
        self.first_byte(payload).await?;
        let slice = payload.left.min(self.service.turns.slice());
        let turn = self.turn(self.service.turns.price(slice)).await?;
        Ok(self.pace(turn, slice, payload))
    }

    /// All the space for a payload, if there is enough now and nobody else waits for it; otherwise what there is.
    fn reserve_now(&self, token: &Token, len: u32) -> Result<VecDeque<Grant>> {
        let (mut grants, mut left) = (VecDeque::new(), len);
        while left > 0 && self.service.is_uncontested() {
            let reserve = || self.service.store.data().reserve(token.uid, token.file, left);
            match tokio::task::block_in_place(reserve) {
                Ok(grant) => {
                    left -= grant.len().min(left);
                    grants.push_back(grant);
                }
                Err(error) if error.kind() == ErrorKind::NoSpace => break,
                Err(error) => return Err(error),
            }
        }
        Ok(grants)
    }

    /// Takes a payload past the buffer. What cannot go there is buffered after all.
    async fn write_past(
        &mut self,
        caller: &Caller,
        token: &Token,
        span: Span,
        hold: &Hold,
        payload: &mut Payload,
    ) -> Result<Option<Reply>, Failure> {
        let service = self.service.clone();
        // Who says much and sends nothing takes no memory from others.
        self.flush_first(payload.left).await?;
        self.first_byte(payload).await?;
        let Some(_room) = service.ways.room(payload.left).await else {
            let mut pace = self.begin(caller, hold, payload).await?;
            let parts = self.receive(token, payload, &mut pace, VecDeque::new()).await?;
            let _pass = caller.fence.pass()?;
            let done =
                service.store.data().commit(token.file, Place::At(span.start), parts, self.job.id())?;
            return Ok(Some(Reply::Written { offset: done.offset }));
        };
        let mut pace = self.begin(caller, hold, payload).await?;
        let mut bytes = vec![0; payload.left as usize];
        self.fill(&mut bytes, payload, &mut pace).await?;
        drop(pace);
        let bytes = Arc::new(bytes);
        let (offset, data) = (span.start, service.store.data());
        if let Some(flown) = service.fly(token.file, span, bytes.clone()).await {
            let _pass = caller.fence.pass()?;
            match flown.count(&service) {
                Ok(true) => {
                    self.job.passed(span.len());
                    service.ways.passed(span.len());
                    return Ok(Some(Reply::Written { offset }));
                }
                Ok(false) => {}
                Err(error) if error.kind() == ErrorKind::NoSpace => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut parts = Vec::with_capacity(1);
        let mut left = bytes.as_slice();
        while !left.is_empty() {
            let len = u32::try_from(left.len()).expect("a payload has few MiB");
            let mut grant = self.reserve(token, len, None).await?;
            let (now, later) = left.split_at(left.len().min(grant.len() as usize));
            grant.as_mut_slice()[..now.len()].copy_from_slice(now);
            parts.push(Filled { grant, len: now.len() as u32, crc: crc32c::crc32c(now) });
            left = later;
        }
        let _pass = caller.fence.pass()?;
        let done = data.commit(token.file, Place::At(offset), parts, self.job.id())?;
        Ok(Some(Reply::Written { offset: done.offset }))
    }

    /// Appends to a file whose bytes several servers hold: where they go is known when all have come.
    async fn append(
        &mut self,
        caller: &Caller,
        token: &Token,
        layout: &Layout,
        hold: &Hold,
        payload: &mut Payload,
    ) -> Result<Option<Reply>, Failure> {
        let service = self.service.clone();
        let len = payload.left;
        let room = service.appends.acquire_many(len.div_ceil(1 << 10)).await;
        let _room = room.map_err(|_| Error::from(ErrorKind::Busy))?;
        let mut pace = self.begin(caller, hold, payload).await?;
        let mut bytes = vec![0; len as usize];
        self.fill(&mut bytes, payload, &mut pace).await?;
        drop(pace);
        let writer = Writer { file: token.file, uid: token.uid, job: self.job.id() };
        match service.append_shared(&caller.fence, &writer, layout, &bytes).await {
            Ok(offset) => Ok(Some(Reply::Written { offset })),
            Err(Undone::Failed(error)) => Err(Failure::Refused(error)),
            Err(Undone::Unknown) => {
                let text = "another server did not answer in the middle of an append";
                Err(Failure::Broken(Error::new(ErrorKind::Unreachable, text)))
            }
        }
    }

    /// Reads the payload into as many reservations as it takes.
    async fn receive(
        &mut self,
        token: &Token,
        payload: &mut Payload,
        pace: &mut Pace,
        mut first: VecDeque<Grant>,
    ) -> Result<Vec<Filled>, Failure> {
        let mut parts = Vec::with_capacity(1);
        while payload.left > 0 {
            let mut grant = match first.pop_front() {
                Some(grant) => grant,
                None => self.reserve(token, payload.left, Some(pace)).await?,
            };
            let len = grant.len().min(payload.left);
            let crc = self.fill(&mut grant.as_mut_slice()[..len as usize], payload, pace).await?;
            parts.push(Filled { grant, len, crc });
        }
        Ok(parts)
    }

    /// Fills reserved space, and returns its checksum.
    async fn fill(
        &mut self,
        space: &mut [u8],
        payload: &mut Payload,
        pace: &mut Pace,
    ) -> Result<u32, Failure> {
        let (mut filled, mut crc) = (0, 0);
        while filled < space.len() {
            if pace.left() == 0 {
                let slice = payload.left.min(self.service.turns.slice());
                let turn = self.next_turn(pace, slice).await?;
                *pace = self.pace(turn, slice, payload);
            }
            let end = space.len().min(filled + CHUNK.min(pace.left() as usize));
            let step = pace.step(self.inbox.read_into(&mut space[filled..end])).await;
            let count = self.progress(step)?;
            crc = crc32c::crc32c_append(crc, &space[filled..filled + count]);
            filled += count;
            let moved = u32::try_from(count).expect("a payload has few MiB");
            payload.left -= moved;
            pace.moved(moved);
            self.job.wrote(u64::from(moved));
            self.service.ways.came(self.service.store.data().now(), u64::from(moved));
        }
        Ok(crc)
    }

    /// The pace for a slice of a payload. From now on somebody's reservation may wait for this peer: the time to fill
    /// it starts here, and again with every slice, because the peer cannot help having to wait for its turn.
    fn pace(&self, mut turn: Turn, slice: u32, payload: &mut Payload) -> Pace {
        payload.deadline = self.deadline();
        let ahead = self.job.ahead(&mut turn, self.next_slice(payload.left - slice));
        Pace::new(turn, ahead, slice, self.service.config.times.stall, payload.deadline)
    }

    /// What the next slice costs, if that much is left for it.
    fn next_slice(&self, left: u32) -> Option<Cost> {
        (left > 0).then(|| Cost(u64::from(left.min(self.service.turns.slice()))))
    }

    /// The turn for the next slice of a transfer.
    async fn next_turn(&self, pace: &mut Pace, slice: u32) -> Result<Turn> {
        match pace.next() {
            Some(entry) => self.job.wait(entry).await,
            None => self.turn(Cost(u64::from(slice))).await,
        }
    }

    /// Space for a payload, or for the first part of it. A full buffer is waited for without the turn.
    async fn reserve(&self, token: &Token, len: u32, mut pace: Option<&mut Pace>) -> Result<Grant> {
        let data = self.service.store.data();
        if self.service.is_uncontested()
            && let Some(grant) = data.try_reserve(token.uid, token.file, len)
        {
            return Ok(grant);
        }
        let rest = || pace.iter_mut().for_each(|pace| pace.rest());
        let look = || {
            let grant = data.reserve(token.uid, token.file, len)?;
            let got = grant.len().min(len);
            Ok((grant, got))
        };
        self.service.find_room(self.job.id(), rest, look).await
    }

    async fn read(
        &mut self,
        caller: &Caller,
        header: Header,
        token: &Token,
        offset: u64,
        len: u32,
    ) -> Result<Option<Reply>, Failure> {
        let _hold = self.claim(caller, token, Access::READ).await?;
        let len = len.min(MAX_PAYLOAD);
        let asked = len.min(self.service.turns.slice());
        let mut turn = self.turn(self.service.turns.price(asked)).await?;
        let pieces = self.service.store.data().read(token.file, offset, len)?;
        // Asked only where nothing was read: a directory has no bytes.
        if pieces.is_empty() && self.service.is_directory(token.file) {
            return Err(Error::from(ErrorKind::IsDirectory).into());
        }
        let mut taken = asked;
        let parts = match pieces.iter().any(|piece| matches!(piece, Piece::Behind(_))) {
            false => pieces.into_iter().map(Part::Here).collect(),
            true => {
                // The back end is waited for without the turn; another is taken for the bytes.
                turn.spare(u64::from(asked));
                drop(turn);
                drop(pieces);
                let parts = self.service.read_both(token.file, offset, len).await?;
                taken = bytes_of(&parts).1.min(self.service.turns.slice());
                turn = self.turn(Cost(u64::from(taken))).await?;
                parts
            }
        };
        let (mut rest, total) = bytes_of(&parts);
        self.outbox.announce(header.id, total).map_err(Failure::Broken)?;
        let mut slice = total.min(self.service.turns.slice());
        turn.spare(u64::from(taken - slice));
        let mut left = total;
        loop {
            let some = cut(&mut rest, slice as usize);
            let times = self.service.config.times;
            let ahead = self.job.ahead(&mut turn, self.next_slice(left - slice));
            let mut pace = Pace::new(turn, ahead, slice, times.stall, Instant::now() + times.answer);
            self.outbox.send_data(&some, &mut pace).await.map_err(Failure::Broken)?;
            pace.moved(slice);
            self.job.read(u64::from(slice));
            left -= slice;
            if left == 0 {
                return Ok(None);
            }
            slice = left.min(self.service.turns.slice());
            // The answer is on its way: an error can no longer be one.
            turn = self.next_turn(&mut pace, slice).await.map_err(Failure::Broken)?;
        }
    }

    /// The file behind a token, held. The server that opened it may have to be asked first.
    async fn claim(&self, caller: &Caller, token: &Token, need: Access) -> Result<Arc<Hold>> {
        let service = &self.service;
        service.serving().await;
        service.demand_joined()?;
        service.learn_reshape(token.file).await?;
        match service.claim(caller, token, need) {
            Ok(hold) => return Ok(hold),
            Err(Stop::Failed(error)) => return Err(error),
            Err(_) => service.have_vouched(caller, token).await?,
        }
        service.claim(caller, token, need).map_err(|stop| match stop {
            Stop::Failed(error) => error,
            _ => Error::new(
                ErrorKind::Stale,
                format!("file {} is not open any more: open it again", token.file),
            ),
        })
    }

    async fn shed_set_id(&self, caller: &Caller, hold: &Hold) -> Result<()> {
        let (service, file) = (&self.service, hold.file());
        let authority = service.members.members().authority(file);
        if authority == service.config.server {
            return service.shed_set_id(caller, hold);
        }
        if caller.who.is_root() || !hold.take_set_id() {
            return Ok(());
        }
        let dropped = service.ask(authority, PeerRequest::DropSetId { file }).await;
        dropped.map(drop).inspect_err(|_| hold.has_set_id())
    }

    async fn turn(&self, cost: Cost) -> Result<Turn> {
        let entry = self.job.enter(cost, self.service.store.data().now())?;
        self.job.wait(entry).await
    }

    /// Answers gathered so far go out before the socket is waited for: the peer may send the rest only after.
    async fn flush_first(&mut self, len: u32) -> Result<(), Failure> {
        if self.inbox.has(len as usize) {
            return Ok(());
        }
        self.outbox.flush().await.map_err(|error| Failure::Broken(gone(&error)))
    }

    /// Waits, without a turn, until the payload begins to come.
    async fn first_byte(&mut self, payload: &Payload) -> Result<(), Failure> {
        if self.inbox.has(1) {
            return Ok(());
        }
        let filled = tokio::time::timeout_at(payload.deadline, self.inbox.fill(1)).await;
        match filled {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(Failure::Broken(left())),
            Ok(Err(error)) => Err(Failure::Broken(gone(&error))),
            Err(_) => Err(Failure::Broken(self.stalled())),
        }
    }

    /// Reads what is left of a payload, and throws it away.
    async fn discard(&mut self, payload: &mut Payload) -> Result<()> {
        if payload.left == 0 {
            return Ok(());
        }
        self.outbox.flush().await.map_err(|error| gone(&error))?;
        let mut bin = vec![0; CHUNK.min(payload.left as usize)];
        while payload.left > 0 {
            let end = bin.len().min(payload.left as usize);
            let step = tokio::time::timeout_at(payload.deadline, self.inbox.read_into(&mut bin[..end])).await;
            match self.progress(step.ok()) {
                Ok(count) => payload.left -= u32::try_from(count).expect("a payload has few MiB"),
                Err(Failure::Broken(error) | Failure::Refused(error)) => return Err(error),
            }
        }
        Ok(())
    }

    fn progress(&self, step: Option<std::io::Result<usize>>) -> Result<usize, Failure> {
        Err(Failure::Broken(match step {
            None => self.stalled(),
            Some(Ok(0)) => left(),
            Some(Err(error)) => gone(&error),
            Some(Ok(count)) => return Ok(count),
        }))
    }

    fn stalled(&self) -> Error {
        let limit = self.service.config.times.reservation;
        Error::new(
            ErrorKind::Unreachable,
            format!("a payload did not come within {limit:?}: its space is given up"),
        )
    }
}

/// What was read as slices of memory, and how much it is.
fn bytes_of(parts: &[Part]) -> (VecDeque<&[u8]>, u32) {
    let (mut slices, mut total) = (VecDeque::with_capacity(parts.len()), 0);
    for part in parts {
        match part {
            Part::Here(Piece::Bytes(view)) => {
                let bytes: &[u8] = view.as_ref();
                total += bytes.len();
                slices.push_back(bytes);
            }
            Part::There(bytes) => {
                total += bytes.len();
                slices.push_back(bytes);
            }
            Part::Here(Piece::Behind(span)) => unreachable!("{span} was read from behind"),
            Part::Here(Piece::Zeros(count)) => {
                let mut left = *count as usize;
                total += left;
                while left > 0 {
                    let some = left.min(ZEROS.len());
                    slices.push_back(&ZEROS[..some]);
                    left -= some;
                }
            }
        }
    }
    (slices, u32::try_from(total).expect("no more than was asked for"))
}

/// Takes so many bytes off the front.
fn cut<'a>(slices: &mut VecDeque<&'a [u8]>, mut len: usize) -> Vec<&'a [u8]> {
    let mut taken = Vec::new();
    while len > 0
        && let Some(first) = slices.pop_front()
    {
        let (some, rest) = first.split_at(len.min(first.len()));
        if !rest.is_empty() {
            slices.push_front(rest);
        }
        len -= some.len();
        taken.push(some);
    }
    taken
}

fn left() -> Error {
    Error::new(ErrorKind::Unreachable, "the peer left in the middle of a payload")
}
