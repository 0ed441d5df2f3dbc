//! Data connections: writes and reads of one job, in order.
//!
//! A write: the server reads the header and the body and checks the token. When the first byte of the payload arrives,
//! it waits for its turn with the payload still in the socket. Then it reserves space, fills it from the socket without
//! a copy in between, one turn per slice, and commits it. If the write fails before its payload is read, the server
//! reads and discards the payload to keep the connection in sync; an error inside the payload closes the connection.
//!
//! A read: check the token, wait for the turn, pin the pieces in their regions, and send them from there, one turn per
//! slice. Pieces in the back end are fetched first.

use crate::backing::{BackingLayer, Part, bytes_of};
use crate::caller::Caller;
use crate::cluster::{Appends, Blocked, Peers, StripedFiles, Undone, Vouching, Writer};
use crate::config::Times;
use crate::connection::{Connection, Waited};
use crate::direct::DirectIo;
use crate::drain::BufferSpace;
use crate::file_homes::FileHomes;
use crate::framing::gone;
use crate::handle::FileAccess;
use crate::lifecycle::Lifecycle;
use crate::opens::Hold;
use crate::pace::Pace;
use crate::per_user::UserBounds;
use crate::turns::{Turn, Turns};
use crate::writers::Writers;
use forebay_model::{Access, Error, ErrorKind, Layout, Result, Span, shown_time};
use forebay_policy::Cost;
use forebay_policy::route::{Route, Space, decide};
use forebay_store::{Filled, Grant, Piece, Place, Store};
use forebay_wire::{At, Header, MAX_PAYLOAD, PeerRequest, Reply, Request, Token};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Bytes per read: small enough that the bytes are still in the CPU cache when they are checksummed.
const CHUNK: usize = 256 << 10;

enum Failure {
    /// The rest of the payload is discarded, and the error is the answer.
    Refused(Error),
    /// The connection must be closed.
    Broken(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Refused(error)
    }
}

/// Serves a data connection until it closes.
pub(crate) async fn serve(connection: &mut Connection) -> Result<()> {
    let on = connection.shared.transfers.clone();
    let mut transfers = DataConnection { connection, on };
    loop {
        let connection = &mut *transfers.connection;
        let Some(header) = connection.frame()? else {
            connection.send_queue.flush().await.map_err(|error| gone(&error))?;
            match connection.wait().await? {
                Waited::More => continue,
                Waited::End => return Ok(()),
            }
        };
        let mut payload =
            Payload { left: header.payload, deadline: Instant::now() + transfers.on.times.reservation };
        let done = match connection.call(header)? {
            Ok((caller, Request::Write { token, at })) => {
                transfers.write(&caller, &token, at, &mut payload).await
            }
            Ok((caller, Request::Read { token, offset, len })) if header.payload == 0 => {
                transfers.read(&caller, header, &token, offset, len).await
            }
            Ok(_) => {
                let text = "a data connection carries reads and writes only, and only writes have a payload";
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
        transfers.discard(&mut payload).await?;
        let connection = &mut *transfers.connection;
        connection.send_queue.answer(header.id, &answer, None);
        if connection.send_queue.is_full() {
            connection.send_queue.flush().await.map_err(|error| gone(&error))?;
        }
    }
}

/// The unread part of a frame's payload.
struct Payload {
    left: u32,
    deadline: Instant,
}

/// What writes and reads use.
pub(crate) struct Transfers {
    pub(crate) times: Times,
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) life: Arc<Lifecycle>,
    pub(crate) access: Arc<FileAccess>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) striped: Arc<StripedFiles>,
    pub(crate) vouching: Arc<Vouching>,
    pub(crate) appends: Arc<Appends>,
    pub(crate) users: Arc<UserBounds>,
    /// KiB of appends to striped files that are in memory at the same time.
    pub(crate) append_memory: Semaphore,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) writers: Arc<Writers>,
    pub(crate) space: Arc<BufferSpace>,
    pub(crate) direct: Arc<DirectIo>,
}

/// A connection for writes and reads.
struct DataConnection<'a> {
    connection: &'a mut Connection,
    on: Arc<Transfers>,
}

impl DataConnection<'_> {
    fn deadline(&self) -> Instant {
        Instant::now() + self.on.times.reservation
    }

    async fn write(
        &mut self,
        caller: &Caller,
        token: &Token,
        at: At,
        payload: &mut Payload,
    ) -> Result<Option<Reply>, Failure> {
        // Held to the end, so that the file is not removed while its bytes arrive.
        let hold = self.claim(caller, token, Access::WRITE).await?;
        let (place, offset) = match at {
            At::Offset(offset) => (Place::At(offset), Some(offset)),
            At::End => (Place::End, None),
        };
        let len = payload.left;
        if len == 0 {
            let offset = match offset {
                Some(offset) => offset,
                None => self.on.store.data().facts(token.file)?.size,
            };
            return Ok(Some(Reply::Written { offset }));
        }
        if at == At::End
            && let Some(layout) = self.on.homes.shared_layout(token.file)?
        {
            return self.append(caller, token, &layout, &hold, payload).await;
        }
        let span = offset.and_then(|offset| Span::at(offset, u64::from(len)));
        if let Some(span) =
            span.filter(|&span| self.on.direct.route_of(token.file, Some(span)) == Route::Direct)
        {
            return self.write_directly(caller, token, span, &hold, payload).await;
        }
        let mut first = VecDeque::new();
        if let Some(span) = span.filter(|_| self.on.writers.route.bypass()) {
            first = self.reserve_now(token, len)?;
            let found: u64 = first.iter().map(|grant: &Grant| u64::from(grant.len())).sum();
            let space = if found < u64::from(len) { Space::Full } else { Space::Free };
            let route = decide(Route::Buffer, space, self.on.writers.route.when_full());
            if route == Route::Direct && self.on.direct.may_bypass(token.file, span) {
                drop(first);
                return self.write_directly(caller, token, span, &hold, payload).await;
            }
        }
        let mut pace = self.begin(caller, &hold, payload).await?;
        let parts = self.receive(token, payload, &mut pace, first).await?;
        let done = {
            let _pass = caller.connection_epoch.pass()?;
            self.on.store.data().commit(token.file, place, parts, self.connection.job.id())?
        };
        Ok(Some(Reply::Written { offset: done.offset }))
    }

    /// Waits for the first turn of a payload that has begun to arrive.
    async fn begin(&mut self, caller: &Caller, hold: &Hold, payload: &mut Payload) -> Result<Pace, Failure> {
        self.shed_set_id(caller, hold).await?;
        self.flush_first(payload.left).await?;
        self.first_byte(payload).await?;
        let slice = payload.left.min(self.on.turns.slice());
        let turn = self.turn(self.on.turns.price(slice)).await?;
        Ok(self.pace(turn, slice, payload))
    }

    /// Reserves space for the whole payload if enough is free and no other writer waits; otherwise as much as is free.
    fn reserve_now(&self, token: &Token, len: u32) -> Result<VecDeque<Grant>> {
        let (mut grants, mut left) = (VecDeque::new(), len);
        while left > 0 && self.on.space.is_uncontested() {
            let reserve = || self.on.store.data().reserve(token.uid, token.file, left);
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

    /// Writes a payload directly to the back end. Bytes that cannot be written directly are buffered.
    async fn write_directly(
        &mut self,
        caller: &Caller,
        token: &Token,
        span: Span,
        hold: &Hold,
        payload: &mut Payload,
    ) -> Result<Option<Reply>, Failure> {
        let on = self.on.clone();
        // A peer that announces a payload but sends nothing takes no memory.
        self.flush_first(payload.left).await?;
        self.first_byte(payload).await?;
        let Some(_permit) = on.direct.room(payload.left).await else {
            let mut pace = self.begin(caller, hold, payload).await?;
            let parts = self.receive(token, payload, &mut pace, VecDeque::new()).await?;
            let _pass = caller.connection_epoch.pass()?;
            let done =
                on.store.data().commit(token.file, Place::At(span.start), parts, self.connection.job.id())?;
            return Ok(Some(Reply::Written { offset: done.offset }));
        };
        let mut pace = self.begin(caller, hold, payload).await?;
        let mut bytes = vec![0; payload.left as usize];
        self.fill(&mut bytes, payload, &mut pace).await?;
        drop(pace);
        let bytes = Arc::new(bytes);
        let (offset, data) = (span.start, on.store.data());
        if let Some(flown) = on.direct.write(token.file, span, bytes.clone()).await {
            let _pass = caller.connection_epoch.pass()?;
            match flown.count(&on.direct) {
                Ok(true) => {
                    self.connection.job.passed(span.len());
                    on.direct.passed(span.len());
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
            let len = u32::try_from(left.len()).expect("payloads are at most a few MiB");
            let mut grant = self.reserve(token, len, None).await?;
            let (now, later) = left.split_at(left.len().min(grant.len() as usize));
            grant.as_mut_slice()[..now.len()].copy_from_slice(now);
            parts.push(Filled { grant, len: now.len() as u32, crc: crc32c::crc32c(now) });
            left = later;
        }
        let _pass = caller.connection_epoch.pass()?;
        let done = data.commit(token.file, Place::At(offset), parts, self.connection.job.id())?;
        Ok(Some(Reply::Written { offset: done.offset }))
    }

    /// Appends to a striped file. The offset is assigned when all bytes have arrived.
    async fn append(
        &mut self,
        caller: &Caller,
        token: &Token,
        layout: &Layout,
        hold: &Hold,
        payload: &mut Payload,
    ) -> Result<Option<Reply>, Failure> {
        let on = self.on.clone();
        let len = payload.left;
        // A peer that announces a payload but sends nothing takes no memory, and waiting for the user's permit delays no
        // other user.
        self.flush_first(len).await?;
        self.first_byte(payload).await?;
        let _own = on.users.appends.wait(caller.who.uid, on.times.reservation).await?;
        let permit = on.append_memory.acquire_many(len.div_ceil(1 << 10)).await;
        let _permit = permit.map_err(|_| Error::from(ErrorKind::Busy))?;
        let mut pace = self.begin(caller, hold, payload).await?;
        let mut bytes = vec![0; len as usize];
        self.fill(&mut bytes, payload, &mut pace).await?;
        drop(pace);
        let writer = Writer { file: token.file, uid: token.uid, job: self.connection.job.id() };
        match on.appends.append(&caller.connection_epoch, &writer, layout, &bytes).await {
            Ok(offset) => Ok(Some(Reply::Written { offset })),
            Err(Undone::Failed(error)) => Err(Failure::Refused(error)),
            Err(Undone::Unknown) => {
                let text = "another server did not answer during an append: the append may have happened";
                Err(Failure::Broken(Error::new(ErrorKind::Unreachable, text)))
            }
        }
    }

    /// Reads the payload into as many reservations as needed.
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

    /// Fills reserved space from the socket and returns its checksum.
    async fn fill(
        &mut self,
        space: &mut [u8],
        payload: &mut Payload,
        pace: &mut Pace,
    ) -> Result<u32, Failure> {
        let (mut filled, mut crc) = (0, 0);
        while filled < space.len() {
            if pace.left() == 0 {
                let slice = payload.left.min(self.on.turns.slice());
                let turn = self.next_turn(pace, slice).await?;
                *pace = self.pace(turn, slice, payload);
            }
            let end = space.len().min(filled + CHUNK.min(pace.left() as usize));
            let step = pace.step(self.connection.frame_reader.read_into(&mut space[filled..end])).await;
            let count = self.progress(step)?;
            crc = crc32c::crc32c_append(crc, &space[filled..filled + count]);
            filled += count;
            let moved = u32::try_from(count).expect("payloads are at most a few MiB");
            payload.left -= moved;
            pace.moved(moved);
            self.connection.job.wrote(u64::from(moved));
            self.on.direct.came(self.on.store.data().now(), u64::from(moved));
        }
        Ok(crc)
    }

    /// The pace for a slice of a payload. The deadline for filling the reservation restarts with every slice, because
    /// the peer is not responsible for the time it waits for its turn.
    fn pace(&self, mut turn: Turn, slice: u32, payload: &mut Payload) -> Pace {
        payload.deadline = self.deadline();
        let ahead = self.connection.job.ahead(&mut turn, self.next_slice(payload.left - slice));
        Pace::new(turn, ahead, slice, self.on.times.stall, payload.deadline)
    }

    /// The cost of the next slice; `None` if no bytes are left.
    fn next_slice(&self, left: u32) -> Option<Cost> {
        (left > 0).then(|| Cost(u64::from(left.min(self.on.turns.slice()))))
    }

    /// Waits for the turn of the next slice.
    async fn next_turn(&self, pace: &mut Pace, slice: u32) -> Result<Turn> {
        match pace.next() {
            Some(entry) => self.connection.job.wait(entry).await,
            None => self.turn(Cost(u64::from(slice))).await,
        }
    }

    /// Reserves space for the payload or its first part. Gives the turn back while it waits for a full buffer.
    async fn reserve(&self, token: &Token, len: u32, mut pace: Option<&mut Pace>) -> Result<Grant> {
        let data = self.on.store.data();
        if self.on.space.is_uncontested()
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
        self.on.space.wait_for_space(self.connection.job.id(), rest, look).await
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
        let requested = len.min(self.on.turns.slice());
        let mut turn = self.turn(self.on.turns.price(requested)).await?;
        let pieces = self.on.store.data().read(token.file, offset, len)?;
        // Checked only if nothing was read: a directory has no bytes.
        if pieces.is_empty() && self.on.homes.is_directory(token.file) {
            return Err(Error::from(ErrorKind::IsDirectory).into());
        }
        let mut taken = requested;
        let parts = match pieces.iter().any(|piece| matches!(piece, Piece::Backing(_))) {
            false => pieces.into_iter().map(Part::Here).collect(),
            true => {
                // Give the turn back while waiting for the back end, and take another one for the bytes.
                turn.spare(u64::from(requested));
                drop(turn);
                drop(pieces);
                let parts = self.on.layer.read_both(token.uid, token.file, offset, len).await?;
                taken = bytes_of(&parts).1.min(self.on.turns.slice());
                turn = self.turn(Cost(u64::from(taken))).await?;
                parts
            }
        };
        let (mut rest, total) = bytes_of(&parts);
        self.connection.send_queue.announce(header.id, total).map_err(Failure::Broken)?;
        let mut slice = total.min(self.on.turns.slice());
        turn.spare(u64::from(taken - slice));
        let mut left = total;
        loop {
            let some = cut(&mut rest, slice as usize);
            let times = self.on.times;
            let ahead = self.connection.job.ahead(&mut turn, self.next_slice(left - slice));
            let mut pace = Pace::new(turn, ahead, slice, times.stall, Instant::now() + times.answer);
            self.connection.send_queue.send_data(&some, &mut pace).await.map_err(Failure::Broken)?;
            pace.moved(slice);
            self.connection.job.read(u64::from(slice));
            left -= slice;
            if left == 0 {
                return Ok(None);
            }
            slice = left.min(self.on.turns.slice());
            // The header is already sent, so an error can no longer be the answer.
            turn = self.next_turn(&mut pace, slice).await.map_err(Failure::Broken)?;
        }
    }

    /// Holds the file of a token. May have to call the server that opened it.
    async fn claim(&self, caller: &Caller, token: &Token, need: Access) -> Result<Arc<Hold>> {
        let on = &self.on;
        on.life.serving().await;
        on.homes.demand_joined()?;
        on.striped.learn_reshape(token.file).await?;
        match on.access.claim(caller, token, need) {
            Ok(hold) => return Ok(hold),
            Err(Blocked::Failed(error)) => return Err(error),
            Err(_) => on.vouching.have_vouched(caller, token).await?,
        }
        on.access.claim(caller, token, need).map_err(|stop| match stop {
            Blocked::Failed(error) => error,
            _ => {
                Error::new(ErrorKind::Stale, format!("file {} is no longer open: open it again", token.file))
            }
        })
    }

    async fn shed_set_id(&self, caller: &Caller, hold: &Hold) -> Result<()> {
        let (on, file) = (&self.on, hold.file());
        if on.homes.is_authority(file) {
            return on.access.shed_set_id(caller, hold);
        }
        if caller.who.is_root() || !hold.take_set_id() {
            return Ok(());
        }
        let dropped = on.peers.ask(on.homes.authority(file), PeerRequest::DropSetId { file }).await;
        dropped.map(drop).inspect_err(|_| hold.has_set_id())
    }

    async fn turn(&self, cost: Cost) -> Result<Turn> {
        let entry = self.connection.job.enter(cost, self.on.store.data().now())?;
        self.connection.job.wait(entry).await
    }

    /// Flushes queued answers before waiting for the socket: the peer may wait for them before it sends the rest.
    async fn flush_first(&mut self, len: u32) -> Result<(), Failure> {
        if self.connection.frame_reader.has_payload(len) {
            return Ok(());
        }
        self.connection.send_queue.flush().await.map_err(|error| Failure::Broken(gone(&error)))
    }

    /// Waits without a turn until the first byte of the payload arrives.
    async fn first_byte(&mut self, payload: &Payload) -> Result<(), Failure> {
        if self.connection.frame_reader.has(1) {
            return Ok(());
        }
        let filled = tokio::time::timeout_at(payload.deadline, self.connection.frame_reader.fill(1)).await;
        match filled {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(Failure::Broken(left())),
            Ok(Err(error)) => Err(Failure::Broken(gone(&error))),
            Err(_) => Err(Failure::Broken(self.stalled())),
        }
    }

    /// Reads the rest of a payload and discards it.
    async fn discard(&mut self, payload: &mut Payload) -> Result<()> {
        if payload.left == 0 {
            return Ok(());
        }
        self.connection.send_queue.flush().await.map_err(|error| gone(&error))?;
        let mut bin = vec![0; CHUNK.min(payload.left as usize)];
        while payload.left > 0 {
            let end = bin.len().min(payload.left as usize);
            let step = tokio::time::timeout_at(
                payload.deadline,
                self.connection.frame_reader.read_into(&mut bin[..end]),
            )
            .await;
            match self.progress(step.ok()) {
                Ok(count) => payload.left -= u32::try_from(count).expect("payloads are at most a few MiB"),
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
        let limit = self.on.times.reservation;
        Error::new(
            ErrorKind::Unreachable,
            format!("no payload within {}: its reservation is released", shown_time(limit)),
        )
    }
}

/// Takes `len` bytes off the front.
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
    Error::new(ErrorKind::Unreachable, "the peer disconnected in the middle of a payload")
}
