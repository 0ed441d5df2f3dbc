//! What servers ask each other. Whoever asks has proved the key and said in a [`Meeting`] which server it is.

use crate::lost::{Remain, Remains};
use crate::message::Token;
use forebay_model::{FileId, Incarnation, JobId, Layout, Members, Name, Reshape, ServerId, Span, Stamp, Uid};
use serde::{Deserialize, Serialize};

/// Most bytes in one [`PeerRequest::Put`].
pub const MAX_PUT: usize = 256 << 10;

/// What a server asks another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerRequest {
    /// The first words on a line.
    Meet(Meeting),
    /// I am here; what I have of your directories counts for a lease from the moment I sent this.
    Beat,
    /// Something about names, in the store's own words.
    Names {
        /// What is asked.
        ask: Vec<u8>,
    },
    /// Something about names that somebody wants done, in the store's own words.
    Carry {
        /// What.
        ask: Vec<u8>,
    },
    /// What do your entries add to the attributes of a directory?
    Share {
        /// Which.
        dir: FileId,
    },
    /// Is this token good, and what has its holder to know?
    Vouch {
        /// The token.
        token: Token,
    },
    /// What do you hold of a file's bytes?
    Facts {
        /// Which file.
        file: FileId,
        /// Whether nobody has it open any more: whoever still thinks so has to be vouched for again.
        closed: bool,
    },
    /// Note a change of what you hold of a file; make it, or forget it, when you hear what became of it.
    Reshape {
        /// Which file.
        file: FileId,
        /// Which of its changes.
        serial: Stamp,
        /// What changes.
        change: Reshape,
        /// Bytes below this offset that you do not find were lost with an earlier life of your store.
        lost_below: u64,
    },
    /// Nobody can ever reach this file again.
    Forget {
        /// Which.
        file: FileId,
    },
    /// Somebody other than the superuser changes the bytes of this file: take its set-id bits away.
    DropSetId {
        /// Which.
        file: FileId,
    },
    /// This file was given a set-id bit: whoever writes has to say so.
    HasSetId {
        /// Which.
        file: FileId,
    },
    /// What became of a change that you have noted.
    Reshaped {
        /// Of which file.
        file: FileId,
        /// Which of its changes.
        serial: Stamp,
        /// Whether it is made.
        done: bool,
    },
    /// What became of a change that you had me note?
    Fate {
        /// Of which file.
        file: FileId,
        /// Which of its changes.
        serial: Stamp,
    },
    /// Write a piece of what somebody appends to a file of mine.
    Put {
        /// To which file.
        file: FileId,
        /// Who writes.
        uid: Uid,
        /// For which job.
        job: JobId,
        /// Where.
        offset: u64,
        /// Bytes below this offset that you do not find were lost with an earlier life of your store.
        lost_below: u64,
        /// What; at most [`MAX_PUT`] bytes.
        bytes: Vec<u8>,
    },
    /// Where is a file of yours in the back end?
    Behind {
        /// Which.
        file: FileId,
    },
    /// What is left of what may have been lost?
    Remains {
        /// Several things at once.
        of: Vec<Remain>,
    },
    /// I want to drain bytes of a file of yours: have it in the back end, at least so long.
    Bear {
        /// Which.
        file: FileId,
        /// The length of what I hold of it.
        size: u64,
    },
    /// All I held of a file of yours is drained.
    Drained {
        /// Which.
        file: FileId,
    },
    /// Write no more to a file of mine in the back end until you have asked again; and have zeros there where the file
    /// has zeros of yours.
    Level {
        /// Which.
        file: FileId,
        /// Which bytes are whose.
        layout: Layout,
        /// Where it is in the back end.
        place: Place,
        /// How long the file is.
        size: u64,
        /// Bytes below this offset that you do not find were lost with an earlier life of your store.
        lost_below: u64,
    },
    /// How much of these files of mine, written before, have you not drained yet?
    Undrained {
        /// Which.
        files: Vec<FileId>,
        /// Before when, by your clock.
        before: Stamp,
        /// Whether they are to be drained now.
        drain: bool,
    },
    /// Somebody else changed a file of mine in the back end: is it there as you have it, but for that? Then take it so.
    Anew {
        /// Which.
        file: FileId,
        /// Its length there, if you are to take it.
        size: Option<u64>,
    },
    /// This is what I have for targets that are yours to give, in place of whatever I said before.
    Arbitrate {
        /// The latest of your grants that I have heard of.
        heard: u64,
        /// How full I am, in thousandths.
        fill: u16,
        /// What I have, job by job.
        wanted: Vec<Wanted>,
        /// What I have written to each of those targets since I began, for those who find out how many writers it likes.
        written: Vec<(u32, u64)>,
    },
    /// I have a place for you at a target: ask what it is.
    Granted,
    /// Somebody removed a file of mine from the back end: have you all of yours here? Then forget that it was there.
    Vanished {
        /// Which file.
        file: FileId,
        /// Which bytes are yours.
        layout: Layout,
        /// Whether it is only asked.
        ask: bool,
    },
    /// Bring near what you have behind of these bytes of a file of mine.
    Fetch {
        /// Which file.
        file: FileId,
        /// Where it is behind.
        place: Place,
        /// Which bytes.
        spans: Vec<Span>,
        /// What has come under the same number is not driven out for them.
        turn: u64,
    },
    /// Let things leave in this order from now on.
    Order {
        /// Such as `trio`.
        order: String,
        /// Whether it is only asked if you can.
        ask: bool,
    },
}

/// What a server answers another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerReply {
    /// It is done.
    Done,
    /// The answer to a meeting.
    Met(Met),
    /// Something about names, in the store's own words.
    Names {
        /// What is told.
        told: Vec<u8>,
    },
    /// The beat was heard.
    Alive {
        /// Which life of the server this is: what an earlier one said counts no more.
        life: u64,
    },
    /// The token is good.
    Vouched(Vouched),
    /// What is held of the file.
    Facts(Held),
    /// What the entries add to the directory.
    Share {
        /// So many directories.
        subdirs: u32,
        /// Their last change.
        touched: Option<Stamp>,
    },
    /// What became of the change.
    Fate {
        /// Whether it is made; nothing while that is open.
        done: Option<bool>,
    },
    /// Where the file is in the back end.
    Behind {
        /// Nothing if it is not there.
        place: Option<Place>,
    },
    /// What is left, in the order of the questions.
    Remains(Vec<Remains>),
    /// The file is in the back end.
    Born {
        /// Nothing if it has no name any more.
        born: Option<Born>,
    },
    /// Where you may write.
    Granted(Vec<Granted>),
    /// What was not drained yet.
    Undrained {
        /// What the clock says.
        now: Stamp,
        /// In the order of the question.
        left: Vec<Left>,
    },
    /// What is near now of what was to be.
    Fetched {
        /// How many bytes.
        bytes: u64,
        /// Whether the rest is not because there is no room for more.
        full: bool,
    },
}

/// A server introduces itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Meeting {
    /// Which one.
    pub server: ServerId,
    /// Which life of its store.
    pub incarnation: Incarnation,
    /// Whether it has joined the service with this store.
    pub joined: bool,
    /// Whom it takes for the service.
    pub members: Members,
}

/// What the one that was met says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Met {
    /// Which one.
    pub server: ServerId,
    /// Which life of its store.
    pub incarnation: Incarnation,
    /// Whether it has joined the service with this store.
    pub joined: bool,
    /// How often the store of the one that introduced itself was replaced; `None` if it was not known before.
    pub replaced: Option<u16>,
    /// The first id that it has not handed out.
    pub next_id: FileId,
}

/// What the holder of a good token has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Vouched {
    /// Bytes below this offset that the asker does not find were lost with an earlier life of its store.
    pub lost_below: u64,
    /// Whether the file has a set-id bit.
    pub set_id: bool,
    /// Bytes of a stripe, and over how many servers stripes go round.
    pub stripes: (u64, u16),
}

/// Where a file is in the back end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The names that lead there.
    pub path: Vec<Name>,
    /// Which file that is there, whatever its name.
    pub serial: u64,
}

/// A file that servers may write to in the back end, each its own bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Born {
    /// Where it is there.
    pub place: Place,
    /// How long it is there, at least: nobody writes beyond.
    pub grown: u64,
    /// Which bytes are whose.
    pub layout: Layout,
    /// Its owner.
    pub owner: Uid,
}

/// What a server has of one job for the targets of an arbiter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// The job.
    pub job: JobId,
    /// The larger, the sooner.
    pub priority: u32,
    /// Bytes, by the number of their target.
    pub left: Vec<(u32, u64)>,
    /// Targets at which it holds a place.
    pub holds: Vec<u32>,
}

/// A place at a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Granted {
    /// Which grant of its arbiter this is.
    pub serial: u64,
    /// For which job.
    pub job: JobId,
    /// Where.
    pub target: u32,
    /// For how many bytes, if it is not for all.
    pub bytes: u64,
}

/// What a server has not drained of a file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Left {
    /// So many bytes.
    pub bytes: u64,
    /// As often it was tried and failed.
    pub tries: u32,
}

/// What a server holds of a file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Held {
    /// Behind its last byte.
    pub size: u64,
    /// The last change.
    pub touched: Option<Stamp>,
    /// Bytes in the buffer.
    pub buffered: u64,
}
